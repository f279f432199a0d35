package analyticstest

import (
	"cmp"
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

	RetryCount int    // from the header X-Retry-Count; 0 without this header, as in a first attempt
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

// newBatch returns the Batch of a request, whose body the function read reads. If read fails, the
// Batch has an Err.
func newBatch(r *http.Request, read func(*Batch, *http.Request) error) *Batch {
	b := &Batch{
		Path:   r.URL.Path,
		Header: r.Header.Clone(),
		Gzip:   strings.EqualFold(r.Header.Get("Content-Encoding"), "gzip"),
	}
	b.WriteKey, _, _ = r.BasicAuth()
	if n, err := strconv.Atoi(r.Header.Get("X-Retry-Count")); err == nil && n > 0 {
		b.RetryCount = n
	}
	err := read(b, r)
	b.Time = time.Now()
	if err != nil {
		b.Err, b.Calls = fmt.Errorf("analyticstest: %w", err), nil
	}
	return b
}

// readHalf reads a request up to the middle of its body.
func (b *Batch) readHalf(r *http.Request) error {
	b.Body, _ = io.ReadAll(io.LimitReader(r.Body, max(1, r.ContentLength/2)))
	return errors.New("the script ended the request in the middle of its body")
}

// read reads a request to its end, and sets the fields whose values are in the body.
func (b *Batch) read(r *http.Request) (err error) {
	body := io.Reader(r.Body)
	if b.Gzip {
		if body, err = gzip.NewReader(r.Body); err != nil {
			return fmt.Errorf("not gzip: %w", err)
		}
	}
	if b.Body, err = io.ReadAll(io.LimitReader(body, maxBody+1)); err != nil {
		return fmt.Errorf("the body was cut off: %w", err)
	}
	if len(b.Body) > maxBody {
		return fmt.Errorf("the body has more than %d bytes", maxBody)
	}
	var batch struct {
		Batch     []json.RawMessage `json:"batch"`
		Context   map[string]any    `json:"context"`
		MessageID string            `json:"messageId"`
		SentAt    json.RawMessage   `json:"sentAt"`
		WriteKey  string            `json:"writeKey"`
	}
	if err := json.Unmarshal(b.Body, &batch); err != nil {
		return fmt.Errorf("the body is not a batch: %w", err)
	}
	if batch.Batch == nil {
		return errors.New("the body has no batch")
	}
	b.Context, b.MessageId, b.SentAt = batch.Context, batch.MessageID, parseTime(batch.SentAt)
	b.WriteKey = cmp.Or(b.WriteKey, batch.WriteKey)
	for i, raw := range batch.Batch {
		c, err := newCall(raw)
		if err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
		c.WriteKey = b.WriteKey
		b.Calls = append(b.Calls, c)
	}
	return nil
}

// parseTime returns the time in a JSON value, or the zero time if there is no valid one.
func parseTime(raw json.RawMessage) time.Time {
	t, err := isotime.ParseJSON(raw)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}
