package portal

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

// ErrForbidden is what Config.Tenant returns, perhaps wrapped, for somebody who is known but may not
// see the webhooks of a tenant.
var ErrForbidden = errors.New("portal: forbidden")

const maxBody = 64 << 10 // bytes of a request's body

//go:embed openapi.json
var openAPI []byte

// A handler is the portal.
type handler struct {
	config         Config
	cross          *http.CrossOriginProtection
	mux            *http.ServeMux
	types          []eventType
	tests, resends *limit
	turns          turns
	resending      sync.Map      // has the tenants whose failed deliveries are being sent again
	steps          chan struct{} // has an element for each of them that uses the store now
}

// A request is a request of a person of a tenant.
type request struct {
	h             *handler
	w             http.ResponseWriter
	r             *http.Request
	tenant, actor string
	leave         func() // ends the turn; see turns.enter
}

// A route is a method and path of the API. If do returns neither a value nor an error, it has
// answered itself.
type route struct {
	pattern string
	needs   Action // "" for what everybody may do
	do      func(*request) (any, error)
}

var routes = []route{
	{"GET /api/v1/settings", "", getSettings},
	{"GET /api/v1/types", "", getTypes},
	{"GET /api/v1/endpoints", "", listEndpoints},
	{"POST /api/v1/endpoints", ActionCreate, createEndpoint},
	{"GET /api/v1/endpoints/{endpoint}", "", getEndpoint},
	{"PATCH /api/v1/endpoints/{endpoint}", ActionChange, changeEndpoint},
	{"DELETE /api/v1/endpoints/{endpoint}", ActionDelete, deleteEndpoint},
	{"POST /api/v1/endpoints/{endpoint}/rotate", ActionRotate, rotateSecret},
	{"POST /api/v1/endpoints/{endpoint}/test", ActionTest, testEndpoint},
	{"POST /api/v1/endpoints/{endpoint}/resend", ActionResend, resendFailed},
	{"GET /api/v1/deliveries", "", listDeliveries},
	{"GET /api/v1/deliveries/{delivery}", "", getDelivery},
	{"POST /api/v1/deliveries/{delivery}/resend", ActionResend, resendDelivery},
}

func newHandler(c Config) (*handler, error) {
	h := &handler{
		config: c, cross: http.NewCrossOriginProtection(), mux: http.NewServeMux(),
		tests: newLimit(c.TestsPerMinute), resends: newLimit(c.ResendsPerMinute),
		turns: turns{of: make(map[string]*line)}, steps: make(chan struct{}, maxSteps),
	}
	if err := h.readTypes(c.Catalogue); err != nil {
		return nil, err
	}
	for _, r := range routes {
		h.mux.Handle(r.pattern, http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) { h.serve(w, hr, r) }))
	}
	h.mux.HandleFunc("GET /api/v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(openAPI)
	})
	h.mux.Handle("/", page(&c))
	h.mux.HandleFunc("/api/", func(w http.ResponseWriter, _ *http.Request) { errNotFound.write(w) })
	return h, nil
}

// readTypes decodes the types of a catalogue.
func (h *handler) readTypes(c *event.Catalogue) error {
	h.types = []eventType{}
	if c == nil {
		return nil
	}
	all, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(all, &h.types)
	}
	return err
}

// ServeHTTP finds out whose request it is, before it reads anything of the request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	// The page has a policy, and a caching, of its own.
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	if h.cross.Check(r) != nil {
		(&failure{http.StatusForbidden, "cross_origin", "The request comes from a page of another site.", nil}).write(w)
		return
	}
	tenant, actor, err := h.config.Tenant(r)
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	h.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), person{}, person{tenant, actor})))
}

// A person is who sends a request. Its zero value is the key of a context.
type person struct{ tenant, actor string }

// serve answers a request of the API.
func (h *handler) serve(w http.ResponseWriter, hr *http.Request, r route) {
	who := hr.Context().Value(person{}).(person)
	if r.needs != "" && !h.config.may(r.needs) {
		(&failure{http.StatusForbidden, "not_allowed", "This is not allowed here.", nil}).write(w)
		return
	}
	leave := h.turns.enter(hr.Context(), who.tenant)
	if leave == nil {
		tooOften(w, 0).write(w)
		return
	}
	defer leave()
	if hr.Body != nil {
		hr.Body = http.MaxBytesReader(w, hr.Body, maxBody)
	}
	q := &request{h, w, hr, who.tenant, who.actor, leave}
	answer, err := r.do(q)
	if err != nil {
		q.fail(err)
	} else if answer != nil {
		writeJSON(w, http.StatusOK, answer)
	}
}

// created is an answer with the status 201.
type created struct{ value any }

func writeJSON(w http.ResponseWriter, status int, value any) {
	if c, ok := value.(created); ok {
		status, value = http.StatusCreated, c.value
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err) // only for types that do not encode
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(b.Bytes())
}

// read decodes the JSON body of a request.
func (q *request) read(into any) error {
	if kind, _, _ := mime.ParseMediaType(q.r.Header.Get("Content-Type")); kind != "application/json" {
		return &failure{http.StatusUnsupportedMediaType, "media_type", "The body has to be application/json.", nil}
	}
	d := json.NewDecoder(q.r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			return nil
		}
		err = errors.New("something follows the value")
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return &failure{http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("The body has more than %d bytes.", maxBody), nil}
	}
	return &failure{http.StatusBadRequest, "malformed", "The body is not the JSON that is expected.", nil}
}

// A failure is an answer that is an error.
type failure struct {
	status  int
	Code    string       `json:"code"`
	Message string       `json:"message"`
	Fields  []fieldFault `json:"fields,omitempty"` // what is wrong with a form
}

// A fieldFault says what is wrong with a field of a form.
type fieldFault struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

func (f *failure) Error() string { return f.Message }

func (f *failure) write(w http.ResponseWriter) { writeJSON(w, f.status, f) }

var errNotFound = &failure{http.StatusNotFound, "not_found", "There is no such thing.", nil}

// invalid is the answer to a form with one field that is wrong.
func invalid(field, format string, args ...any) error {
	return &failure{http.StatusUnprocessableEntity, "invalid", "Something in the form is wrong.", []fieldFault{{field, fmt.Sprintf(format, args...)}}}
}

// fail answers with an error.
func (q *request) fail(err error) {
	f := failureOf(err)
	if f.status == http.StatusInternalServerError && q.r.Context().Err() == nil {
		q.h.config.Logger.Error("portal: a request failed; the customer was told to try again", "tenant", q.tenant, "method", q.r.Method, "error", err)
	}
	f.write(q.w)
}

// failureOf returns what a customer is told of an error.
func failureOf(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	switch {
	case errors.Is(err, tenants.ErrUnknown), errors.Is(err, webhook.ErrNoDelivery):
		return errNotFound
	case errors.Is(err, tenants.ErrConflict):
		return &failure{http.StatusConflict, "conflict", "Somebody has changed it meanwhile. Load it again.", nil}
	case errors.Is(err, tenants.ErrTooMany):
		return &failure{http.StatusConflict, "too_many", "There are as many endpoints as are allowed.", nil}
	case errors.Is(err, webhook.ErrClosed), errors.Is(err, webhook.ErrQueueFull):
		return &failure{http.StatusServiceUnavailable, "unavailable", "This is not possible at the moment. Try again later.", nil}
	}
	if faults := faultsOf(err); faults != nil {
		return &failure{http.StatusUnprocessableEntity, "invalid", "Something in the form is wrong.", faults}
	}
	return &failure{http.StatusInternalServerError, "internal", "Something went wrong. Try again.", nil}
}

// formFields has the fields of a form by the beginnings of the fields of a tenants.Destination.
var formFields = []struct{ prefix, field string }{{"Endpoints", "url"}, {"Filter", "types"}, {"Name", "description"}}

// faultsOf returns what is wrong with settings, in the words of the form; nil for other errors.
func faultsOf(err error) (faults []fieldFault) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			faults = append(faults, faultsOf(e)...)
		}
		return faults
	}
	wrong, ok := errors.AsType[*webhook.ConfigError](err)
	if !ok {
		return nil
	}
	field := ""
	for _, f := range formFields {
		if strings.HasPrefix(wrong.Field, f.prefix) {
			field = f.field
		}
	}
	return []fieldFault{{field, wrong.Problem}}
}

// pageSize is the parameter "limit": how many elements a page has.
func (q *request) pageSize() (int, error) {
	text := q.r.URL.Query().Get("limit")
	if text == "" {
		return defaultPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPage {
		return 0, invalid("limit", "has to be a number from 1 to %d", maxPage)
	}
	return n, nil
}

const (
	defaultPage = 50 // elements of a page
	maxPage     = 200
)
