package webhooktest

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/hookferry/analytics/signature"
)

// A Request is one that a [Receiver] has read to the end of its body. It is not
// changed after that.
type Request struct {
	// Number counts the receiver's requests from 1.
	Number int
	// Conn counts the receiver's connections from 1: which of them the
	// request came on.
	Conn int
	// Time is when the body had been read.
	Time time.Time
	// Method, URL, Proto and Header are those of the request. URL has the path and
	// the query alone. Header does not have Host, which is in Host.
	Method string
	URL    *url.URL
	Proto  string
	Host   string
	Header http.Header
	// TLS is nil for a request in the clear. Its PeerCertificates are the
	// client's, which is asked for one but need not have it; they are not
	// verified.
	TLS *tls.ConnectionState
	// Body is the body as it came.
	Body []byte
	// JSON is Body as encoding/json reads an object, nil if it is none.
	JSON map[string]any
	// Signature is what [signature.Verify] says of the X-Signature header and
	// the receiver's secret: nil if the signature is good, and
	// [signature.ErrNoSecret] if the receiver has no secret.
	Signature error
}

func newRequest(r *http.Request, body []byte, secret signature.Secret) *Request {
	q := &Request{
		Time:      time.Now(),
		Method:    r.Method,
		URL:       r.URL,
		Proto:     r.Proto,
		Host:      r.Host,
		Header:    r.Header.Clone(),
		TLS:       r.TLS,
		Body:      body,
		Signature: signature.Verify(body, r.Header.Get(signature.Header), secret),
	}
	if json.Unmarshal(body, &q.JSON) != nil {
		q.JSON = nil
	}
	return q
}
