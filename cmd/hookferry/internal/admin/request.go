package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

const (
	maxJSON     = 1 << 20 // in bytes, of a body
	maxRepeated = 100     // values of one parameter
)

// A request is a request of the API, with its parameters.
type request struct {
	handler *Handler
	http    *http.Request
	w       http.ResponseWriter
	query   url.Values
	arrived bool // the request was read to its end; see received
}

// A handlerFunc returns an error or the answer. The answer is nil if the function has already
// written it.
type handlerFunc func(*request) (answer any, err error)

// answering checks the parameters, calls serve, and writes the answer or the error.
func (h *Handler) answering(serve handlerFunc, params []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := &request{handler: h, http: r, w: w}
		var answer any
		err := q.readQuery(params)
		if !utf8.ValidString(r.URL.Path) { // JSON could not repeat a name in it
			err = badRequest("", "the path is not UTF-8")
		}
		if r.ContentLength == 0 {
			q.received()
		}
		if err == nil {
			answer, err = serve(q)
		}
		switch {
		case r.Context().Err() != nil: // the client is gone
		case err != nil:
			f := q.failed(r.Context(), err)
			q.send(f.status, encode(f.answer))
		case answer != nil:
			q.send(http.StatusOK, encode(answer))
		}
	})
}

// withBody returns a handlerFunc that reads the JSON of the body before it calls serve.
func withBody[T any](serve func(*request, *T) (any, error)) handlerFunc {
	return func(q *request) (any, error) {
		var body T
		if err := q.readJSON(&body); err != nil {
			return nil, err
		}
		return serve(q, &body)
	}
}

// choices has the values that parameters may have, beside "", which is no value. The parameter
// "state" is not in it, because the functions that use a state check it. All other parameters may
// have any value.
var choices = map[string][]string{
	api.ParamKind:    {feed.KindAccepted, feed.KindAttempt, feed.KindDelivered, feed.KindDead},
	api.ParamSort:    api.Sorts,
	api.ParamRange:   {"5m", "1h", "24h"},
	api.ParamOrder:   {api.OrderOldest, api.OrderNewest},
	api.ParamWaiting: api.WaitingChoices,

	api.ParamAllowShrink: {"true"},
}

// readQuery reads and checks the query parameters; see route.params.
func (q *request) readQuery(params []string) (err error) {
	if q.query, err = url.ParseQuery(q.http.URL.RawQuery); err != nil {
		return badRequest("", "the query is malformed")
	}
	for name, values := range q.query {
		once := slices.Contains(params, name) || slices.Contains(params, name+"!")
		switch {
		case !once && !slices.Contains(params, name+"*"):
			return badRequest(name, "there is no such parameter here")
		case once && len(values) > 1:
			return badRequest(name, "%s is given twice", name)
		case len(values) > maxRepeated:
			return badRequest(name, "%s is given %d times, the limit is %d", name, len(values), maxRepeated)
		}
		q.query[name] = slices.DeleteFunc(values, func(v string) bool { return v == "" })
	}
	for _, param := range params {
		name := strings.TrimRight(param, "*!")
		if strings.HasSuffix(param, "!") && q.param(name) == "" {
			return badRequest(name, "%s is missing", name)
		}
		for _, value := range q.query[name] {
			isTime := name == api.ParamFrom || name == api.ParamTo
			if list, bound := choices[name]; bound {
				err = oneOf(name, value, list)
			} else if isTime && new(time.Time).UnmarshalText([]byte(value)) != nil {
				err = badRequest(name, "%s is not a time as of RFC 3339, such as 2006-01-02T15:04:05Z", name)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// oneOf refuses a value of a field that is not in the list.
func oneOf[T ~string](field string, value T, list []T) error {
	if slices.Contains(list, value) {
		return nil
	}
	return badRequest(field, "%s is not one of %q", field, list)
}

func (q *request) param(name string) string { return q.query.Get(name) }

// limit returns the parameter "limit", a number from 1 to most, or usual if it is missing.
func (q *request) limit(usual, most int) (int, error) {
	n, err := q.number(api.ParamLimit, 1, uint64(most), fmt.Sprintf("a number from 1 to %d", most))
	if n == nil {
		return usual, err
	}
	return int(*n), nil
}

// number returns a parameter that is a whole number from least to most, or nil if it is missing. The
// argument want describes it in the error.
func (q *request) number(name string, least, most uint64, want string) (*uint64, error) {
	s := q.param(name)
	if s == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n < least || n > most {
		return nil, badRequest(name, "%s is not %s", name, want)
	}
	return &n, nil
}

// errAfter says that the parameter "after" is wrong.
var errAfter = badRequest(api.ParamAfter, "after is not a value from an answer of this listing")

// page returns the first page of the sequence all, with each value converted by the function answer.
// If more values follow, the page's After is the key of its last value. A page has 50 values, or as
// many as the parameter "limit" says, up to 500.
func page[T, A any](q *request, all iter.Seq2[T, error], answer func(*T) A, key func(*T) string) (api.Page[A], error) {
	p, last := api.Page[A]{Items: []A{}}, ""
	limit, err := q.limit(50, 500)
	if err != nil {
		return p, err
	}
	for v, err := range all {
		if err != nil {
			return p, err
		}
		if len(p.Items) == limit {
			p.After = last
			break
		}
		p.Items, last = append(p.Items, answer(&v)), key(&v)
	}
	return p, nil
}

// behind yields the values for which the function after returns true.
func behind[T any](all []T, after func(T) bool) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range all {
			if after(v) && !yield(v, nil) {
				return
			}
		}
	}
}

// same is for pages whose values are answers already.
func same[T any](v *T) T { return *v }

func (q *request) isType(want string) bool {
	got, _, err := mime.ParseMediaType(q.http.Header.Get("Content-Type"))
	return err == nil && got == want
}

// readJSON reads the body into v. The body must be one JSON value, without fields that v lacks.
func (q *request) readJSON(v any) error {
	if !q.isType("application/json") {
		return refuse(api.CodeUnsupported, http.StatusUnsupportedMediaType, "Content-Type", "want application/json")
	}
	decoder := json.NewDecoder(http.MaxBytesReader(q.w, q.http.Body, maxJSON))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(v)
	if err == nil {
		if _, err = decoder.Token(); err == io.EOF {
			q.received()
			return nil
		} else if err == nil {
			return badRequest("", "there is more text behind the JSON value")
		}
	}
	if field, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return badRequest(field.Field, "%s may not be a JSON %s", field.Field, field.Value)
	}
	if errors.As(err, new(*http.MaxBytesError)) {
		return err
	}
	return badRequest("", "the body is not valid JSON for this request: %v", err)
}

// received removes the deadlines for slow clients: the store may take longer. If a read deadline
// passed, net/http would end the context of the request, as it does when the connection is closed.
func (q *request) received() {
	q.arrived = true
	control := http.NewResponseController(q.w)
	_ = control.SetReadDeadline(time.Time{}) // an error means that there are no deadlines, as in tests
	_ = control.SetWriteDeadline(time.Time{})
}

// A failure is an error of a request, with the status of its answer.
type failure struct {
	answer api.Error
	status int
}

func (f *failure) Error() string { return f.answer.Error() }

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

// failed returns the answer for an error. Errors of the library contain no secrets. failed logs an
// error of the server, unless ctx has ended.
func (q *request) failed(ctx context.Context, err error) *failure {
	if f, ok := errors.AsType[*failure](wrongDocument("", err)); ok {
		return f
	}
	if size, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return refuse(api.CodeTooLarge, http.StatusRequestEntityTooLarge, "", "the body is over %d bytes", size.Limit)
	}
	if shrink, ok := errors.AsType[*audience.ShrinkError](err); ok {
		return conflict(api.ParamAllowShrink, "%d of %d members would leave, which is more than half, so nobody has left; if the list is complete, sync with allowShrink (--allow-shrink)", shrink.Leaving, shrink.Members)
	}
	switch {
	case errors.Is(err, webhook.ErrUnsupported):
		return refuse(api.CodeUnsupported, http.StatusNotImplemented, "", "the store does not support this")
	case errors.Is(err, webhook.ErrNoDelivery):
		return notFound("there is no such delivery: it may have been retried, discarded, or delivered and not kept")
	case errors.Is(err, webhook.ErrUnknownDestination):
		return notFound("%v", err)
	case errors.Is(err, audience.ErrSyncing), errors.Is(err, audience.ErrSuperseded):
		return conflict("", "%v", err)
	case errors.Is(err, tenants.ErrUnknown):
		return notFound("there is no such tenant, destination or token")
	case errors.Is(err, tenants.ErrTooMany):
		return conflict("", "%v", err)
	case errors.Is(err, tenants.ErrConflict):
		return conflict(api.ParamVersion, "%v", err)
	case errors.Is(err, tenants.ErrTooLarge):
		return refuse(api.CodeTooLarge, http.StatusRequestEntityTooLarge, "", "%v", err)
	case errors.Is(err, webhook.ErrClosed):
		return unavailable("the server is stopping")
	case errors.Is(err, webhook.ErrQueueFull):
		return unavailable("the store is full")
	}
	if ctx.Err() == nil {
		q.handler.config.Logger.Error("admin: a request failed", "path", q.http.URL.Path, "error", err)
	}
	return refuse(api.CodeInternal, http.StatusInternalServerError, "", "%v", err)
}

// send writes an answer of JSON.
func (q *request) send(status int, text []byte) {
	if q.arrived {
		_ = http.NewResponseController(q.w).SetWriteDeadline(time.Now().Add(streamTimeout))
	}
	writeJSON(q.w, status, text)
}

func writeError(w http.ResponseWriter, f *failure) { writeJSON(w, f.status, encode(f.answer)) }

func writeJSON(w http.ResponseWriter, status int, text []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	w.Write(text) // an error means that the client is gone
}

// encode returns values as JSON, one a line, without escapes for HTML: bodies are shown as sent.
func encode(values ...any) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	for _, v := range values {
		if err := encoder.Encode(v); err != nil {
			panic(err) // a type of package api that is not JSON
		}
	}
	return b.Bytes()
}
