package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// A failure is an error of a request, with the status of its answer.
type failure struct {
	told   api.Error
	status int
}

func (f *failure) Error() string { return f.told.Error() }

func refuse(code string, status int, field, format string, args ...any) *failure {
	return &failure{api.Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}, status}
}

// badRequest says what is wrong with a field.
func badRequest(field, format string, args ...any) *failure {
	return refuse(api.CodeBadRequest, http.StatusBadRequest, field, format, args...)
}

func notFound(format string, args ...any) *failure {
	return refuse(api.CodeNotFound, http.StatusNotFound, "", format, args...)
}

// failureOf says what err is to the client. Errors of the library have no
// secrets in them.
func failureOf(err error) *failure {
	var (
		f    *failure
		size *http.MaxBytesError
	)
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &size):
		return refuse(api.CodeTooLarge, http.StatusRequestEntityTooLarge, "", "the body is over %d bytes", size.Limit)
	case errors.Is(err, webhook.ErrUnsupported):
		return refuse(api.CodeUnsupported, http.StatusNotImplemented, "", "the store does not support this")
	case errors.Is(err, webhook.ErrNoDeadLetter):
		return notFound("there is no such dead letter: it may have been replayed or discarded")
	case errors.Is(err, webhook.ErrUnknownDestination):
		return notFound("%v", err)
	case errors.Is(err, audience.ErrSyncing), errors.Is(err, audience.ErrSuperseded):
		return refuse(api.CodeConflict, http.StatusConflict, "", "%v", err)
	case errors.Is(err, webhook.ErrClosed):
		return refuse(api.CodeUnavailable, http.StatusServiceUnavailable, "", "the server is stopping")
	case errors.Is(err, webhook.ErrQueueFull):
		return refuse(api.CodeUnavailable, http.StatusServiceUnavailable, "", "the store is full")
	}
	return refuse(api.CodeInternal, http.StatusInternalServerError, "", "%v", err)
}

// answering returns a handler that answers with the error of serve, if there is one.
// After an error, serve has not begun its answer.
func (h *Handler) answering(serve func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := serve(w, r)
		if err == nil || r.Context().Err() != nil {
			return // or there is nobody to tell
		}
		f := failureOf(err)
		if f.status == http.StatusInternalServerError {
			h.config.Logger.Error("admin: a request failed", "path", r.URL.Path, "error", err)
		}
		writeError(w, f)
	})
}

func writeError(w http.ResponseWriter, f *failure) {
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, f.status, f.told)
}

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // bodies are shown as they are
	if err := encoder.Encode(v); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	w.Write(b.Bytes()) // if that fails there is nobody to tell
	return nil
}

// maxJSON bounds the bodies of requests that are JSON, in bytes.
const maxJSON = 1 << 20

// isType reports whether a request says that its body is of a type.
func isType(r *http.Request, want string) bool {
	got, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && got == want
}

// readJSON reads the body of a request: one value, with no field that v has
// not.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	if !isType(r, "application/json") {
		return refuse(api.CodeUnsupported, http.StatusUnsupportedMediaType, "Content-Type", "want application/json")
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJSON))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(v)
	if err == nil {
		if _, err = decoder.Token(); err == io.EOF {
			return nil
		} else if err == nil {
			return badRequest("", "there is something behind the JSON")
		}
	}
	var size *http.MaxBytesError
	var field *json.UnmarshalTypeError
	switch {
	case errors.As(err, &size):
		return err
	case errors.As(err, &field):
		return badRequest(field.Field, "%s is a JSON %s, which it may not be", field.Field, field.Value)
	}
	return badRequest("", "the body is not the JSON that is wanted: %v", err)
}

// A query has the parameters of a request. Its methods note what is wrong in err,
// which is to be looked at once all parameters were read.
type query struct {
	values url.Values
	err    error // what was found wrong first
}

// queryOf reads the parameters of a request. Those that are not known, and those
// given more than once, are errors of the query. A known name that ends in "*" may be
// given up to maxRepeated times.
func queryOf(r *http.Request, known ...string) *query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &query{values: values}
	if err != nil {
		q.err = badRequest("", "the query is malformed")
	}
	for name, vs := range values {
		i := 0
		for i < len(known) && known[i] != name && known[i] != name+"*" {
			i++
		}
		switch {
		case i == len(known):
			q.fail(name, "there is no such parameter here")
		case len(vs) > 1 && known[i] == name:
			q.fail(name, "%s is given twice", name)
		case len(vs) > maxRepeated:
			q.fail(name, "%s is given %d times, the limit is %d", name, len(vs), maxRepeated)
		}
	}
	return q
}

// A page of a listing has up to defaultPage values, or as many as the limit says, up
// to maxPage.
const (
	defaultPage = 50
	maxPage     = 500
)

// maxRepeated is how often a parameter may be repeated.
const maxRepeated = 100

func (q *query) fail(field, format string, args ...any) {
	if q.err == nil {
		q.err = badRequest(field, format, args...)
	}
}

func (q *query) text(name string) string { return q.values.Get(name) }

// required returns a text that may not be left out.
func (q *query) required(name string) string {
	s := q.text(name)
	if s == "" {
		q.fail(name, "%s is missing", name)
	}
	return s
}

// number returns a number from 1 to most, or def if there is none.
func (q *query) number(name string, def, most int) int {
	s := q.text(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		q.fail(name, "%s is not a number from 1 to %d", name, most)
	}
	return n
}

// time returns a time, the zero time if there is none.
func (q *query) time(name string) (t time.Time) {
	s := q.text(name)
	if s == "" {
		return t
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		q.fail(name, "%s is not a time as of RFC 3339, such as 2006-01-02T15:04:05Z", name)
	}
	return t
}
