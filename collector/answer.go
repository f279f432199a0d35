package collector

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/random"
)

// A refusal is an error, and the answer that the client gets for it.
type refusal struct {
	status  int
	code    event.Code
	message string
	wait    time.Duration // Retry-After of a 429
}

// refuse returns a refusal. Every error that a request of calls ends with is one.
func refuse(status int, code event.Code, message string) error {
	return &refusal{status: status, code: code, message: message}
}

func (r *refusal) Error() string { return r.message }

// wrong returns the refusal of a request that is not valid.
func wrong(code event.Code, message string) error {
	return refuse(http.StatusBadRequest, code, message)
}

// later returns the refusal of a request that the client may send again.
func later(message string) error {
	return refuse(http.StatusServiceUnavailable, "unavailable", message)
}

// A rejection says that one call of a batch is wrong. The other calls are still taken.
type rejection struct {
	Index   int        `json:"index"`
	Code    event.Code `json:"code"`
	Message string     `json:"message"`
}

// Header values, and a body, that all answers share, so that an answer need not allocate them.
var (
	anyOrigin   = []string{"*"}
	exposed     = []string{"retry-after, x-ratelimit-reset"}
	contentJSON = []string{"application/json"}
	success     = []byte("{\"success\":true}\n")
)

// allowOrigins lets pages of any origin read the answer. A write key in a page is public.
func allowOrigins(w http.ResponseWriter) {
	w.Header()["Access-Control-Allow-Origin"] = anyOrigin
	w.Header()["Access-Control-Expose-Headers"] = exposed
}

// preflight answers a CORS preflight. Browsers may cache the answer for a day. The answer names
// every allowed header, because "*" would not allow authorization (Fetch standard, section 3.3.3).
func (a *Answered) preflight(w http.ResponseWriter, methods, headers string) {
	header := w.Header()
	header.Set("Allow", methods)
	header.Set("Access-Control-Allow-Methods", methods)
	header.Set("Access-Control-Allow-Headers", headers)
	header.Set("Access-Control-Max-Age", "86400")
	a.Status = http.StatusNoContent
	w.WriteHeader(a.Status)
}

// success answers that all calls but the rejected ones are taken. It writes the rejections one by
// one. Otherwise a client that reads slowly would keep the whole answer in memory.
func (a *Answered) success(w http.ResponseWriter, rejected []rejection) {
	if len(rejected) == 0 {
		a.json(w, http.StatusOK, success)
		return
	}
	b := []byte(`{"success":true,"rejected":[`)
	for i := range rejected {
		b, _ = esjson.AppendValue(b, &rejected[i]) // no error: a rejection is JSON
		a.json(w, http.StatusOK, b)
		b = append(b[:0], ',')
	}
	a.json(w, http.StatusOK, []byte("]}\n"))
}

// error answers with the refusal that err is. Every 503 has a random Retry-After of 3 to 7 seconds,
// so that clients that are refused at the same time do not all retry at the same time. In a 429,
// Retry-After is the number of seconds until the limit takes the next request.
func (a *Answered) error(w http.ResponseWriter, err error) {
	r, _ := errors.AsType[*refusal](err)
	switch r.status {
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", strconv.Itoa(3+random.N(5)))
	case http.StatusTooManyRequests:
		seconds := strconv.Itoa(int((r.wait + time.Second - 1) / time.Second))
		w.Header().Set("Retry-After", seconds)
		w.Header().Set("X-RateLimit-Reset", seconds)
	}
	a.Code = string(r.code)
	b := append([]byte(nil), `{"success":false,"code":`...)
	b = esjson.AppendString(b, a.Code)
	b = append(b, `,"message":`...)
	b = esjson.AppendString(b, r.message)
	a.json(w, r.status, append(b, "}\n"...))
}

// json writes an answer, or the next piece of an answer.
func (a *Answered) json(w http.ResponseWriter, status int, body []byte) {
	if a.Status == 0 {
		a.Status = status
		w.Header()["Content-Type"] = contentJSON
		w.WriteHeader(status)
	}
	// An error means that the client is gone.
	_, _ = w.Write(body)
}
