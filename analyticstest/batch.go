package analyticstest

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/internal/isotime"
)

// maxBody bounds the body of a batch request, in bytes after decompression: 500 KB. A
// Server refuses larger bodies, as collectors do.
const maxBody = 500 << 10

// A Batch is a batch request as the server received it: one attempt.
type Batch struct {
	Number   int         // number among the server's batch requests, from 1
	Time     time.Time   // when the server had read the request
	Path     string      // path of the URL, such as "/v1/batch"
	Header   http.Header // headers of the request
	WriteKey string      // from the Authorization header, or else from the body

	RetryCount int    // from the header X-Retry-Count, 0 for a first attempt, which does not have it
	Gzip       bool   // the body was compressed
	Body       []byte // decompressed

	MessageId string         // the messageId of the batch
	SentAt    time.Time      // zero if it is missing or a collector would not accept it
	Context   map[string]any // the context of the batch; a Client puts the library there
	Calls     []Call         // in the order of the batch

	// Status is the HTTP status of the answer. It is 0 while the server has not answered,
	// and stays 0 if the server never sends an answer. After a 2xx, Server.Calls includes
	// the calls of the batch, except those that a Reject step rejected.
	Status int

	// Err is nil for a complete and valid request. Otherwise it says why the batch has
	// no Calls: the request was cut off, or a collector would refuse it. The server
	// answers 400 to a request that a collector would refuse.
	Err error
}

// newBatch returns a Batch with the data in the header of a request.
func newBatch(r *http.Request) *Batch {
	b := &Batch{
		Path:   r.URL.Path,
		Header: r.Header.Clone(),
		Gzip:   strings.EqualFold(r.Header.Get("Content-Encoding"), "gzip"),
	}
	b.WriteKey, _, _ = r.BasicAuth()
	if n, err := strconv.Atoi(r.Header.Get("X-Retry-Count")); err == nil && n > 0 {
		b.RetryCount = n
	}
	return b
}

// readBatch reads a request to its end. If that fails, it sets Err of the Batch that it returns.
func readBatch(r *http.Request) *Batch {
	b := newBatch(r)
	var body io.Reader = r.Body
	if b.Gzip {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			b.fail("not gzip", err)
			return b
		}
		body = z
	}
	var err error
	b.Body, err = io.ReadAll(io.LimitReader(body, maxBody+1))
	b.Time = time.Now()
	switch {
	case err != nil:
		b.fail("the body was cut off", err)
	case len(b.Body) > maxBody:
		b.fail("", fmt.Errorf("the body has more than %d bytes", maxBody))
	default:
		b.decode()
	}
	return b
}

// readHalf reads a request up to the middle of its body.
func readHalf(r *http.Request) *Batch {
	b := newBatch(r)
	b.Body, _ = io.ReadAll(io.LimitReader(r.Body, max(1, r.ContentLength/2)))
	b.Time = time.Now()
	b.fail("", errors.New("the script ended the request in the middle of its body"))
	return b
}

func (b *Batch) fail(what string, err error) {
	if what != "" {
		err = fmt.Errorf("%s: %w", what, err)
	}
	b.Err = fmt.Errorf("analyticstest: %w", err)
	b.Calls = nil
	if b.Time.IsZero() {
		b.Time = time.Now()
	}
}

// decode sets the fields whose values are in the body.
func (b *Batch) decode() {
	var body struct {
		Batch     []json.RawMessage `json:"batch"`
		Context   map[string]any    `json:"context"`
		MessageID string            `json:"messageId"`
		SentAt    json.RawMessage   `json:"sentAt"`
		WriteKey  string            `json:"writeKey"`
	}
	if err := json.Unmarshal(b.Body, &body); err != nil {
		b.fail("the body is not a batch", err)
		return
	}
	if body.Batch == nil {
		b.fail("", errors.New("the body has no batch"))
		return
	}
	b.Context, b.MessageId = body.Context, body.MessageID
	b.SentAt = parseTime(body.SentAt)
	if b.WriteKey == "" {
		b.WriteKey = body.WriteKey
	}
	for i, raw := range body.Batch {
		c, err := newCall(raw)
		if err != nil {
			b.fail(fmt.Sprintf("call %d", i), err)
			return
		}
		c.WriteKey = b.WriteKey
		b.Calls = append(b.Calls, c)
	}
}

// parseTime returns the time in a JSON value, or the zero time if there is no valid one.
func parseTime(raw json.RawMessage) time.Time {
	if len(raw) == 0 {
		return time.Time{}
	}
	t, err := isotime.ParseJSON(raw)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}
