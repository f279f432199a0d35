package analyticstest

import (
	"io"
	"net/http"
)

// Discard is a transport that sends nothing. It reads each request to its end and answers
// 200 at once, without a network or a goroutine. Use it to switch a Client off:
//
//	client := analytics.New("off")
//	client.Transport = analyticstest.Discard{}
//
// The client checks and encodes calls as usual, and counts them as delivered. The write key
// may be anything that is not empty.
type Discard struct{}

// RoundTrip implements [http.RoundTripper].
func (Discard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, err := io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{
		Status:     "200 OK",
		StatusCode: http.StatusOK,
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
		Header:     make(http.Header),
		Body:       http.NoBody,
		Request:    r,
	}, nil
}
