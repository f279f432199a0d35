package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

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

func badRequest(field, format string, args ...any) *failure {
	return refuse(api.CodeBadRequest, http.StatusBadRequest, field, format, args...)
}

func notFound(format string, args ...any) *failure {
	return refuse(api.CodeNotFound, http.StatusNotFound, "", format, args...)
}

func conflict(field, format string, args ...any) *failure {
	return refuse(api.CodeConflict, http.StatusConflict, field, format, args...)
}

func unavailable(format string, args ...any) *failure {
	return refuse(api.CodeUnavailable, http.StatusServiceUnavailable, "", format, args...)
}

// failureOf returns the answer for an error. The errors of the library contain no secrets.
func failureOf(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if size, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return refuse(api.CodeTooLarge, http.StatusRequestEntityTooLarge, "", "the body is over %d bytes", size.Limit)
	}
	switch {
	case errors.Is(err, webhook.ErrUnsupported):
		return refuse(api.CodeUnsupported, http.StatusNotImplemented, "", "the store does not support this")
	case errors.Is(err, webhook.ErrNoDeadLetter):
		return notFound("there is no such dead letter: it may have been replayed or discarded")
	case errors.Is(err, webhook.ErrUnknownDestination):
		return notFound("%v", err)
	case errors.Is(err, audience.ErrSyncing), errors.Is(err, audience.ErrSuperseded):
		return conflict("", "%v", err)
	case errors.Is(err, webhook.ErrClosed):
		return unavailable("the server is stopping")
	case errors.Is(err, webhook.ErrQueueFull):
		return unavailable("the store is full")
	}
	return refuse(api.CodeInternal, http.StatusInternalServerError, "", "%v", err)
}

// A handlerFunc serves a request. It returns the answer, or nil after it has written the answer
// itself. With an error it has written nothing.
type handlerFunc func(*request) (answer any, err error)

// answering returns a handler that checks the parameters, calls serve, and writes the answer or the
// error.
func (h *Handler) answering(serve handlerFunc, params []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any
		q, err := newRequest(h, w, r, params)
		if err == nil {
			answer, err = serve(q)
		}
		switch {
		case r.Context().Err() != nil: // the client is gone
		case err != nil:
			f := failureOf(err)
			if f.status == http.StatusInternalServerError {
				h.config.Logger.Error("admin: a request failed", "path", r.URL.Path, "error", err)
			}
			writeError(w, f)
		case answer != nil:
			writeJSON(w, http.StatusOK, answer)
		}
	})
}

// withBody returns a handler that reads the JSON of the body before it calls serve.
func withBody[T any](serve func(*request, *T) (any, error)) handlerFunc {
	return func(q *request) (any, error) {
		var body T
		if err := q.readJSON(&body); err != nil {
			return nil, err
		}
		return serve(q, &body)
	}
}

func writeError(w http.ResponseWriter, f *failure) {
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, f.status, f.told)
}

// writeJSON answers with v. It does not escape for HTML, so bodies of webhooks are shown as sent.
func writeJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(err) // a type of package api that is not JSON
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	w.Write(b.Bytes()) // an error means that the client is gone
}
