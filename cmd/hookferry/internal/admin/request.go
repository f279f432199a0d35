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
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
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
}

// A rule says which values of a parameter are allowed.
type rule struct {
	want  string // describes the allowed values, for the error
	holds func(value string) bool
}

func oneOf(list ...string) rule {
	return rule{"one of " + strings.Join(list, ", "), func(value string) bool { return slices.Contains(list, value) }}
}

var isTime = rule{"a time as of RFC 3339, such as 2006-01-02T15:04:05Z", func(value string) bool {
	return new(time.Time).UnmarshalText([]byte(value)) == nil
}}

// rules has the rules of parameters. A parameter without a rule may have any value. The value "" is
// the same as no value.
var rules = map[string]rule{
	api.ParamKind:    oneOf(feed.KindAccepted, feed.KindAttempt, feed.KindDelivered, feed.KindDead),
	api.ParamState:   oneOf(api.States...),
	api.ParamSort:    oneOf(api.Sorts...),
	api.ParamRange:   oneOf("5m", "1h", "24h"),
	api.ParamWaiting: oneOf(api.WaitingChoices...),
	api.ParamFrom:    isTime,
	api.ParamTo:      isTime,
}

// newRequest reads and checks the parameters; see route.params.
func newRequest(h *Handler, w http.ResponseWriter, r *http.Request, params []string) (*request, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("", "the query is malformed")
	}
	for name, values := range query {
		once := slices.Contains(params, name) || slices.Contains(params, name+"!")
		switch {
		case !once && !slices.Contains(params, name+"*"):
			return nil, badRequest(name, "there is no such parameter here")
		case once && len(values) > 1:
			return nil, badRequest(name, "%s is given twice", name)
		case len(values) > maxRepeated:
			return nil, badRequest(name, "%s is given %d times, the limit is %d", name, len(values), maxRepeated)
		}
	}
	for _, param := range params {
		name := strings.TrimRight(param, "*!")
		if strings.HasSuffix(param, "!") && query.Get(name) == "" {
			return nil, badRequest(name, "%s is missing", name)
		}
		for _, value := range query[name] {
			if rule, ok := rules[name]; ok && value != "" && !rule.holds(value) {
				return nil, badRequest(name, "%s is not %s", name, rule.want)
			}
		}
	}
	return &request{h, r, w, query}, nil
}

func (q *request) param(name string) string { return q.query.Get(name) }

// limit returns the parameter "limit", or the argument usual if the parameter is missing. The
// parameter must be a number from 1 to most.
func (q *request) limit(usual, most int) (int, error) {
	s := q.param(api.ParamLimit)
	if s == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		return 0, badRequest(api.ParamLimit, "limit is not a number from 1 to %d", most)
	}
	return n, nil
}

// number returns a parameter that is a whole number, or nil if the parameter is missing. The
// argument want describes the number in the error.
func (q *request) number(name, want string) (*uint64, error) {
	s := q.param(name)
	if s == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return nil, badRequest(name, "%s is not %s", name, want)
	}
	return &n, nil
}

// filter sets the fields of a filter of package api from the query parameters of the same names.
func (q *request) filter(filter any) {
	for name, values := range q.query {
		if text, err := json.Marshal(map[string]string{name: values[0]}); err == nil && values[0] != "" {
			_ = json.Unmarshal(text, filter) // the rules of the parameters have been checked
		}
	}
}

// page returns the first page of the sequence all, with each value converted by the function
// answer. If more values follow, the result after is the key of the last value on the page. A
// client sends this key to get the next page.
func page[T, A any](q *request, all iter.Seq2[T, error], answer func(*T) A, key func(*T) string) (list []A, after string, err error) {
	limit, err := q.limit(defaultPage, maxPage)
	if err != nil {
		return nil, "", err
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
