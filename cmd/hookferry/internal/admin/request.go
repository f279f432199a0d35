package admin

import (
	"encoding/json"
	"errors"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

const (
	// maxJSON bounds the JSON in the body of a request, in bytes.
	maxJSON = 1 << 20
	// maxRepeated is the largest number of values of one parameter.
	maxRepeated = 100
	// A page of a listing has up to defaultPage values. With the parameter limit, a client can ask
	// for another number, up to maxPage.
	defaultPage = 50
	maxPage     = 500
)

// A request is a request of the API, with its parameters.
type request struct {
	*Handler
	*http.Request
	w     http.ResponseWriter
	query url.Values
	err   error // the problem of the first wrong parameter
}

// newRequest reads the parameters. It sets the error of the request if a parameter is not among
// params, or is repeated although that is not allowed.
func newRequest(h *Handler, w http.ResponseWriter, r *http.Request, params []string) *request {
	q := &request{Handler: h, Request: r, w: w}
	var err error
	if q.query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		q.fail("", "the query is malformed")
	}
	for name, values := range q.query {
		once, repeated := slices.Contains(params, name), slices.Contains(params, name+"*")
		switch {
		case !once && !repeated:
			q.fail(name, "there is no such parameter here")
		case once && len(values) > 1:
			q.fail(name, "%s is given twice", name)
		case len(values) > maxRepeated:
			q.fail(name, "%s is given %d times, the limit is %d", name, len(values), maxRepeated)
		}
	}
	return q
}

// fail sets the error of the request to a problem of a parameter, unless there is an error already.
func (q *request) fail(field, format string, args ...any) {
	if q.err == nil {
		q.err = badRequest(field, format, args...)
	}
}

func (q *request) param(name string) string { return q.query.Get(name) }

// required returns a parameter. If it is missing, the request fails.
func (q *request) required(name string) string {
	s := q.param(name)
	if s == "" {
		q.fail(name, "%s is missing", name)
	}
	return s
}

// oneOf returns a parameter. If one of its values is neither empty nor in list, the request fails.
func (q *request) oneOf(name string, list ...string) string {
	for _, value := range q.query[name] {
		if value != "" && !slices.Contains(list, value) {
			q.fail(name, "%s is not one of %s", name, strings.Join(list, ", "))
		}
	}
	return q.param(name)
}

// limit returns the parameter "limit", or the argument usual if the parameter is missing. If the
// parameter is not a number from 1 to most, the request fails.
func (q *request) limit(usual, most int) int {
	s := q.param(api.ParamLimit)
	if s == "" {
		return usual
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		q.fail(api.ParamLimit, "limit is not a number from 1 to %d", most)
	}
	return n
}

// number returns a parameter that is a whole number, or the argument usual if the parameter is
// missing. The argument want describes the number in the error.
func (q *request) number(name string, usual uint64, want string) uint64 {
	s := q.param(name)
	if s == "" {
		return usual
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		q.fail(name, "%s is not %s", name, want)
	}
	return n
}

// filter sets the fields of a filter of package api from the query parameters of the same names.
func (q *request) filter(filter any) {
	for name, values := range q.query {
		text, err := json.Marshal(map[string]string{name: values[0]})
		if err == nil && values[0] != "" {
			err = json.Unmarshal(text, filter)
		}
		if err != nil {
			q.fail(name, "%s is not a time as of RFC 3339, such as 2006-01-02T15:04:05Z", name)
		}
	}
}

// page returns the first page of the sequence all, with each value converted by the function
// answer. If more values follow, the result after is the key of the last value on the page. A
// client sends this key to get the next page.
func page[T, A any](q *request, all iter.Seq2[T, error], answer func(*T) A, key func(*T) string) (list []A, after string, err error) {
	limit := q.limit(defaultPage, maxPage)
	if q.err != nil {
		return nil, "", q.err
	}
	list, last := []A{}, ""
	for v, err := range all {
		if err != nil {
			return nil, "", err
		}
		if len(list) == limit {
			return list, last, nil
		}
		list, last = append(list, answer(&v)), key(&v)
	}
	return list, "", nil
}

// cut returns one page of an ordered listing: up to limit values, beginning with the first value
// for which the function behind returns true. The result more says that further values follow.
func cut[T any](all []T, limit int, behind func(T) bool) (part []T, more bool) {
	from := slices.IndexFunc(all, behind)
	if from < 0 {
		return nil, false
	}
	all = all[from:]
	return all[:min(limit, len(all))], len(all) > limit
}

func (q *request) isType(want string) bool {
	got, _, err := mime.ParseMediaType(q.Header.Get("Content-Type"))
	return err == nil && got == want
}

// readJSON reads the body into v. The body must be one JSON value, without fields that v lacks.
func (q *request) readJSON(v any) error {
	if !q.isType("application/json") {
		return refuse(api.CodeUnsupported, http.StatusUnsupportedMediaType, "Content-Type", "want application/json")
	}
	decoder := json.NewDecoder(http.MaxBytesReader(q.w, q.Body, maxJSON))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(v)
	if err == nil {
		if _, err = decoder.Token(); err == io.EOF {
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
