package tracing

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The waits before another try, where the receiver asks for none: each is twice
// the one before.
const (
	firstWait = time.Second
	maxWait   = 30 * time.Second
	// maxTries bounds them. The SDK gives a batch 30 seconds as well
	// (OTEL_BSP_EXPORT_TIMEOUT).
	maxTries = 5
)

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64 << 10

// An uploader sends spans by OTLP over HTTP, in protobuf. It stands in for
// otlptracehttp, which links all of gRPC for the types of its messages.
type uploader struct {
	to      string
	header  http.Header
	gzip    bool
	client  *http.Client
	stopped context.Context
	stop    context.CancelFunc
}

var _ otlptrace.Client = (*uploader)(nil)

// Start implements otlptrace.Client.
func (*uploader) Start(context.Context) error { return nil }

// Stop ends uploads that are under way.
func (u *uploader) Stop(context.Context) error {
	u.stop()
	u.client.CloseIdleConnections()
	return nil
}

// UploadTraces sends spans, again while the receiver asks for that and ctx has
// the time.
func (u *uploader) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(u.stopped, cancel)()
	// TracesData has the form of an ExportTraceServiceRequest.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	if u.gzip {
		if body, err = compress(body); err != nil {
			return err
		}
	}
	wait := firstWait
	for try := 1; ; try++ {
		again, asked, err := u.try(ctx, body)
		if !again || try == maxTries {
			return err
		}
		pause := max(wait, asked)
		wait = min(2*wait, maxWait)
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= pause {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w, after: %w", ctx.Err(), err)
		}
	}
}

// try sends a body once. It returns whether another try makes sense, and how long
// the receiver asks to wait before.
func (u *uploader) try(ctx context.Context, body []byte) (again bool, wait time.Duration, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.to, bytes.NewReader(body))
	if err != nil {
		return false, 0, err
	}
	r.Header = u.header.Clone()
	a, err := u.client.Do(r)
	if err != nil {
		var of *url.Error // which has the URL
		if errors.As(err, &of) {
			err = of.Err
		}
		return false, 0, fmt.Errorf("sending to %s: %w", r.URL.Host, err)
	}
	defer a.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(a.Body, maxAnswer))
	switch a.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
		wait = retryAfter(a.Header.Get("Retry-After"))
	}
	if a.StatusCode < 200 || a.StatusCode > 299 {
		return again, wait, fmt.Errorf("%s answered %s", r.URL.Host, a.Status)
	}
	if err != nil {
		return false, 0, fmt.Errorf("reading the answer of %s: %w", r.URL.Host, err)
	}
	if a.Header.Get("Content-Type") == protobuf {
		if n := rejected(answer); n > 0 {
			return false, 0, fmt.Errorf("%s rejected %d spans", r.URL.Host, n)
		}
	}
	return false, 0, nil
}

// retryAfter reads the value of a Retry-After header, as 0 if it is none.
func retryAfter(value string) time.Duration {
	if n, err := strconv.ParseUint(value, 10, 32); err == nil {
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return time.Until(at)
}

// compress returns body in gzip.
func compress(body []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(body); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// rejected returns how many spans an ExportTraceServiceResponse says were not
// taken: rejected_spans, field 1, in partial_success, field 1.
func rejected(answer []byte) uint64 {
	partial, _ := protowire.ConsumeBytes(field(answer, protowire.BytesType))
	n, _ := protowire.ConsumeVarint(field(partial, protowire.VarintType))
	return n
}

// field returns what follows the tag of the first field 1 of a kind in a
// message, nil if there is none.
func field(message []byte, kind protowire.Type) []byte {
	for len(message) > 0 {
		number, is, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		message = message[n:]
		if number == 1 && is == kind {
			return message
		}
		if n = protowire.ConsumeFieldValue(number, is, message); n < 0 {
			return nil
		}
		message = message[n:]
	}
	return nil
}
