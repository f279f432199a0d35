package collector

import (
	"math/rand/v2"
	"net/http"
	"strconv"

	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/webhook"
)

// A refusal is an answer other than 200.
type refusal struct {
	status  int
	code    string
	message string
}

func refuse(status int, code, message string) *refusal {
	return &refusal{status: status, code: code, message: message}
}

// later refuses what may be sent again.
func later(message string) *refusal {
	return refuse(http.StatusServiceUnavailable, "unavailable", message)
}

// wrong refuses a request for what is wrong with one call.
func wrong(err *webhook.CallError) *refusal {
	return refuse(http.StatusBadRequest, string(err.Code), err.Message())
}

// A rejection is a call of a batch that is refused while others are kept.
type rejection struct {
	index   int
	code    webhook.Code
	message string
}

// The values of header fields that are always the same.
var (
	anyOrigin   = []string{"*"}
	exposed     = []string{"retry-after"}
	contentJSON = []string{"application/json"}
	success     = []byte("{\"success\":true}\n")
)

// allowOrigins lets pages of any origin read the answer. The write key, which
// is in the page, is all the authority that there is.
func allowOrigins(w http.ResponseWriter) {
	w.Header()["Access-Control-Allow-Origin"] = anyOrigin
	w.Header()["Access-Control-Expose-Headers"] = exposed
}

// answerPreflight answers a browser that asks whether it may send a request.
// It may remember the answer for a day; browsers cut that to what they see
// fit. The headers are named, because "*" would not cover authorization
// (Fetch standard, section 3.3.3).
func answerPreflight(w http.ResponseWriter, methods string) {
	header := w.Header()
	header.Set("Allow", methods)
	header.Set("Access-Control-Allow-Methods", methods)
	header.Set("Access-Control-Allow-Headers", "authorization, content-type, x-retry-count")
	header.Set("Access-Control-Max-Age", "86400")
	w.WriteHeader(http.StatusNoContent)
}

// answer says that the calls are taken, but for those rejected.
func answer(w http.ResponseWriter, rejected []rejection) {
	if len(rejected) == 0 {
		answerJSON(w, http.StatusOK, success)
		return
	}
	b := append([]byte(nil), `{"success":true,"rejected":[`...)
	for i, r := range rejected {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(r.index), 10)
		b = append(b, `,"code":`...)
		b = esjson.AppendString(b, string(r.code))
		b = append(b, `,"message":`...)
		b = esjson.AppendString(b, r.message)
		b = append(b, '}')
	}
	answerJSON(w, http.StatusOK, append(b, "]}\n"...))
}

// answerError answers with a refusal. Every 503 says when to come back: in 3
// to 7 seconds, so that those who were refused together do not.
func answerError(w http.ResponseWriter, r *refusal) {
	if r.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(3+rand.IntN(5)))
	}
	b := append([]byte(nil), `{"success":false,"code":`...)
	b = esjson.AppendString(b, r.code)
	b = append(b, `,"message":`...)
	b = esjson.AppendString(b, r.message)
	answerJSON(w, r.status, append(b, "}\n"...))
}

func answerJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header()["Content-Type"] = contentJSON
	w.WriteHeader(status)
	// Who does not wait for the answer does not get it.
	_, _ = w.Write(body)
}
