package webhooktest

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/hookferry/analytics/signature"
)

// A Request is a request that a [Receiver] has read to the end of its body. The Receiver
// does not change it afterwards.
type Request struct {
	Number int       // number of the request at its receiver, from 1
	Conn   int       // number of its connection at the receiver, from 1
	Time   time.Time // when the receiver had read the whole body
	// Method, URL, Proto, Host and Header are those of the request. URL has only the path
	// and the query. Header does not have the header Host.
	Method string
	URL    *url.URL
	Proto  string
	Host   string
	Header http.Header
	// TLS is nil for a request without TLS. The receiver asks the client for a certificate, but the
	// client need not have one. TLS.PeerCertificates has the client's certificates, unverified.
	TLS  *tls.ConnectionState
	Body []byte         // as it was received
	JSON map[string]any // Body, unmarshalled by encoding/json; nil if Body is not a JSON object
	// Signature is the result of [signature.Verify] for the X-Signature header and the
	// receiver's secret. It is nil if the signature is good, and [signature.ErrNoSecret]
	// if the receiver has no secret.
	Signature error
}

// Events returns the events of the request, as [signature.Events] does for its webhook-id: one, or those
// of a batch.
func (q *Request) Events() ([]signature.Event, error) {
	return signature.Events(q.Header.Get(signature.StandardID), q.Body)
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
