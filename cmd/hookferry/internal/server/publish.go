package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhookotel"
)

const (
	maxPublished  = 1 << 20  // bytes of a request with events of a tenant
	maxEvents     = 100      // of a request
	publishMemory = 32 << 20 // bytes of all such requests in progress; further ones are answered by 503
	// publishFactor is how much of publishMemory a request takes for each byte of its body: the body, the
	// decoded data, and the bodies of webhooks, each of which the store may copy.
	publishFactor = 4
	maxPublishKey = 255 // bytes of an Idempotency-Key
	maxTenant     = 128 // bytes of a tenant's id; see tenants.Tenant
)

// A publisher takes events for tenants, from programs that have a key of the settings, or a token of
// the tenant. It sends no headers for pages of other origins: a key in a browser would be public.
type publisher struct {
	server *server
	memory *semaphore.Weighted
}

func newPublisher(s *server) *publisher {
	return &publisher{server: s, memory: semaphore.NewWeighted(publishMemory)}
}

// serve answers a request for events of a tenant. For any other path it returns false, without an
// answer.
func (p *publisher) serve(w http.ResponseWriter, r *http.Request) bool {
	tenant, ok := publishedTenant(r)
	if !ok {
		return false
	}
	began := time.Now()
	a := collector.Answered{Path: api.PublishPath, Status: http.StatusOK}
	sent, err := p.publish(w, r, tenant)
	if err == nil {
		a.Accepted = len(sent.Events)
		writeAnswer(w, a.Status, sent)
	} else {
		refusal := p.refusal(r.Context(), err)
		a.Status, a.Code = refusal.status, refusal.answer.Code
		refusal.write(w)
	}
	a.Took = time.Since(began)
	p.server.answered(r, a)
	return true
}

// publishedTenant returns the tenant in a path such as "/v1/tenants/acme/events".
func publishedTenant(r *http.Request) (tenant string, ok bool) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/v1/tenants/")
	tenant, last, _ := strings.Cut(rest, "/")
	return tenant, ok && last == "events"
}

// publish stores the events of a request. Nothing is stored if anything of the request is wrong.
func (p *publisher) publish(w http.ResponseWriter, r *http.Request, tenant string) (api.Published, error) {
	if r.Method != http.MethodPost {
		return api.Published{}, refuse(http.StatusMethodNotAllowed, api.CodeUnsupported, "", "want POST")
	}
	if n := len(tenant); n == 0 || n > maxTenant {
		return api.Published{}, badRequest("tenant", "the tenant has %d bytes; 1 to %d are allowed", n, maxTenant)
	}
	if err := p.admit(r, tenant); err != nil {
		return api.Published{}, err
	}
	size := r.ContentLength
	if size < 0 || size > maxPublished { // read refuses it beyond that
		size = maxPublished
	}
	if !p.memory.TryAcquire(size * publishFactor) {
		return api.Published{}, unavailable("too many requests with events are in progress")
	}
	defer p.memory.Release(size * publishFactor)
	calls, err := readEvents(w, r)
	if err != nil {
		return api.Published{}, err
	}
	if !p.server.ready.serving.Load() {
		return api.Published{}, webhook.ErrClosed
	}
	sent, err := p.server.forwarder.Send(webhookotel.Context(r.Context()), tenant, calls...)
	if err != nil {
		return api.Published{}, err
	}
	return published(sent), nil
}

// admit refuses a request without a key of the settings or a token of the tenant. For an unknown tenant
// the answer is the same.
func (p *publisher) admit(r *http.Request, tenant string) error {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		got, known := sha256.Sum256([]byte(given)), 0
		for _, key := range p.server.settings.Load().Tenants.Keys {
			want := sha256.Sum256([]byte(key.Reveal()))
			known |= subtle.ConstantTimeCompare(got[:], want[:])
		}
		if known == 1 {
			return nil
		}
		_, err := p.server.tenants.CheckToken(r.Context(), tenant, given)
		if !errors.Is(err, tenants.ErrUnknown) {
			return err
		}
	}
	return refuse(http.StatusUnauthorized, api.CodeUnauthorized, "Authorization", "want 'Authorization: Bearer', and a key of tenants.keys or a token of the tenant")
}

// readEvents reads the body of a request: one event, or a list of them.
func readEvents(w http.ResponseWriter, r *http.Request) ([]event.Call, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPublished))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, refuse(http.StatusRequestEntityTooLarge, api.CodeTooLarge, "", "the body has more than %d bytes", tooLarge.Limit)
	} else if err != nil {
		return nil, badRequest("", "the body was cut off")
	}
	events, err := parseEvents(body)
	if err == nil {
		err = idempotency(r, events)
	}
	if err != nil {
		return nil, err
	}
	return callsOf(events)
}

// parseEvents stops at maxEvents, which bounds the memory that a list takes.
func parseEvents(body []byte) (events []api.TenantEvent, err error) {
	in := json.NewDecoder(bytes.NewReader(body))
	in.DisallowUnknownFields()
	isList := bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("["))
	if isList {
		_, _ = in.Token() // the bracket
	}
	for more := true; more && err == nil; more = isList && err == nil && in.More() {
		if len(events) == maxEvents {
			return nil, badRequest("", "the body has more than %d events, the limit", maxEvents)
		}
		var e api.TenantEvent
		err = in.Decode(&e)
		events = append(events, e)
	}
	if err == nil && isList {
		_, err = in.Token() // the other bracket
	}
	if err == nil {
		if _, end := in.Token(); end != io.EOF {
			err = errors.New("there is more text behind the JSON value")
		}
	}
	at := len(events) - 1
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return nil, badRequest(wrong.Field, "event %d: %s may not be a JSON %s", at, wrong.Field, wrong.Value)
	}
	if err != nil {
		return nil, badRequest("", "event %d: the body is no JSON of an event or of a list of events: %v", at, err)
	}
	return events, nil
}

// idempotency gives the only event of a request the id in the header Idempotency-Key, if there is one.
func idempotency(r *http.Request, events []api.TenantEvent) error {
	const header = "Idempotency-Key"
	key := r.Header.Get(header)
	switch {
	case key == "":
		return nil
	case len(events) > 1:
		return badRequest(header, "%s is for a request with one event; give each of several an id", header)
	case len(key) > maxPublishKey:
		return badRequest(header, "%s has %d bytes, the limit is %d", header, len(key), maxPublishKey)
	case events[0].ID != "" && events[0].ID != key:
		return badRequest(header, "%s and the id of the event differ", header)
	}
	events[0].ID = key
	return nil
}

func callsOf(events []api.TenantEvent) ([]event.Call, error) {
	calls := make([]event.Call, len(events))
	for i := range events {
		e := &events[i]
		if e.Data == nil {
			return nil, badRequest("data", "event %d: data is required", i)
		}
		calls[i] = &event.Custom{Type: e.Type, Data: e.Data, ID: e.ID, Time: e.Timestamp, User: e.User, Key: e.Key}
	}
	return calls, nil
}

func published(sent []webhook.Sent) api.Published {
	p := api.Published{Events: make([]api.PublishedEvent, len(sent))}
	for i, s := range sent {
		e := api.PublishedEvent{Result: api.ResultNobody, Stored: s.Stored, Duplicates: s.Duplicates, Filtered: s.Filtered}
		switch {
		case s.Stored > 0:
			e.Result = api.ResultStored
		case s.Duplicates > 0:
			e.Result = api.ResultDuplicate
		case s.Filtered > 0:
			e.Result = api.ResultFiltered
		}
		p.Events[i] = e
	}
	return p
}

// A publishRefusal is the answer to a request whose events were not taken.
type publishRefusal struct {
	answer api.Error
	status int
}

func refuse(status int, code, field, format string, args ...any) *publishRefusal {
	return &publishRefusal{api.Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}, status}
}

func badRequest(field, format string, args ...any) *publishRefusal {
	return refuse(http.StatusBadRequest, api.CodeBadRequest, field, format, args...)
}

func unavailable(format string, args ...any) *publishRefusal {
	return refuse(http.StatusServiceUnavailable, api.CodeUnavailable, "", format, args...)
}

func (e *publishRefusal) Error() string { return e.answer.Error() }

func (e *publishRefusal) write(w http.ResponseWriter) {
	switch e.status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="hookferry"`)
	case http.StatusMethodNotAllowed:
		w.Header().Set("Allow", http.MethodPost)
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	}
	writeAnswer(w, e.status, e.answer)
}

// refusal returns the answer for an error. Errors of the server are logged.
func (p *publisher) refusal(ctx context.Context, err error) *publishRefusal {
	refused, ok := errors.AsType[*publishRefusal](err)
	wrong, isCall := errors.AsType[*event.CallError](err)
	text := strings.TrimPrefix(strings.Replace(err.Error(), "event: call: ", "", 1), "webhook: ") // the names of packages
	switch {
	case ok:
		return refused
	case isCall && wrong.Code == event.CodeTooLarge:
		return refuse(http.StatusRequestEntityTooLarge, api.CodeTooLarge, wrong.Field, "%s", text)
	case isCall:
		return badRequest(wrong.Field, "%s", text)
	case errors.Is(err, webhook.ErrTooLarge):
		return refuse(http.StatusRequestEntityTooLarge, api.CodeTooLarge, "", "%s", text)
	case errors.Is(err, webhook.ErrClosed):
		return unavailable("the server is stopping; send the same request again")
	case errors.Is(err, webhook.ErrQueueFull):
		return unavailable("the store is full; send the same request again")
	}
	if ctx.Err() == nil {
		p.server.Logger.Error("events of a tenant could not be stored; the client was told to send them again", "error", err)
	}
	return unavailable("the events could not be stored; send the same request again")
}

func writeAnswer(w http.ResponseWriter, status int, answer any) {
	text, _ := json.Marshal(answer) // texts and numbers have no errors
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // an error means that the client is gone
}
