package collector

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/isotime"
	"github.com/hookferry/analytics/webhook"
)

// patience is how long a lookup and a commit may take together once a body is
// read.
const patience = 30 * time.Second

// eventSize is about what an event takes in memory beside its body, in bytes.
const eventSize = 256

// serveCalls takes one call of a type or, if kind is "", a batch: it is
// answered once all of its calls that are good are durable.
func (h *Handler) serveCalls(w http.ResponseWriter, r *http.Request, kind string, a *Answered) {
	m := &reservation{h: h}
	defer m.release()
	rejected, refused := h.take(w, r, kind, m, a)
	if refused != nil {
		a.Accepted, a.Rejected = 0, 0
		if refused.status == http.StatusBadRequest && kind != "" {
			a.Rejected = 1
		}
		a.error(w, refused)
		return
	}
	a.success(w, rejected)
}

func (h *Handler) take(w http.ResponseWriter, r *http.Request, kind string, m *reservation, a *Answered) ([]rejection, *refusal) {
	env := webhook.Envelope{
		Type:       kind,
		ReceivedAt: time.Now(),
		IP:         h.config.ClientIP(r),
		// Browsers send an Origin with every POST (Fetch standard, section
		// 3.2), and nobody else has reason to.
		Browser: r.Header.Get("Origin") != "",
	}

	// A key in the header is checked before the body is read.
	var source Source
	var refused *refusal
	key := basicKey(r.Header)
	if key != "" {
		if source, refused = h.admit(r.Context(), key, a); refused != nil {
			return nil, refused
		}
	}
	limit := analytics.MaxCallSize
	if kind == "" {
		limit = analytics.MaxBatchSize
	}
	body, refused := m.read(w, r, limit)
	if a.Size = m.size; refused != nil {
		return nil, refused
	}
	// The calls of a client that sends them and hangs up are good calls, so
	// what the forwarder does is not tied to the connection.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), patience)
	defer cancel()
	if h.config.PassTrace {
		ctx = webhook.ContextWithTrace(ctx, r.Header.Get("Traceparent"), strings.Join(r.Header.Values("Tracestate"), ","))
	}

	var bodyKey string
	if kind == "" {
		m.lists = lists.Get().(*list)
		bodyKey, refused = m.lists.readBatch(body, &env)
	} else if key == "" {
		bodyKey, refused = readKey(body)
	}
	if refused != nil {
		return nil, refused
	}
	if key == "" {
		if source, refused = h.admit(ctx, bodyKey, a); refused != nil {
			return nil, refused
		}
	}

	var events []webhook.Event
	var rejected []rejection
	if kind == "" {
		events, rejected, refused = m.events(ctx, env)
	} else {
		events, refused = m.event(body, env)
	}
	if len(rejected) > 0 {
		h.config.Logger.Debug("collector: calls refused", "source", source.Name,
			"refused", len(rejected), "taken", len(events), "code", rejected[0].code, "message", rejected[0].message)
	}
	if refused != nil {
		return nil, refused
	}
	if source.Limit != nil {
		if wait := source.Limit.take(len(events) + len(rejected)); wait > 0 {
			return nil, tooMany(wait)
		}
	}
	a.Accepted, a.Rejected = len(events), len(rejected)
	return rejected, h.forward(ctx, source, events)
}

// admit finds the source of a request, and refuses what is over its limit
// already: that need not be read.
func (h *Handler) admit(ctx context.Context, key string, a *Answered) (Source, *refusal) {
	source, refused := h.source(ctx, key)
	if a.Source = source.Name; refused != nil {
		return source, refused
	}
	if source.Limit != nil {
		if wait := source.Limit.take(0); wait > 0 {
			return source, tooMany(wait)
		}
	}
	return source, nil
}

// forward hands events on.
func (h *Handler) forward(ctx context.Context, source Source, events []webhook.Event) *refusal {
	if len(events) == 0 || len(source.Destinations) == 0 {
		return nil
	}
	if err := h.config.Forwarder.ForwardEvents(ctx, source.Destinations, events...); err != nil {
		h.forwards.bad(err)
		return later("the queue cannot take calls now")
	}
	h.forwards.good()
	return nil
}

// readKey returns the writeKey of a call, "" if there is none.
func readKey(body []byte) (key string, refused *refusal) {
	err := esjson.Members(body, func(name, value []byte) error {
		if string(name) == "writeKey" {
			key = text(value)
		}
		return nil
	})
	return key, malformed(err, body, "a call")
}

// A list is space for the calls of a batch.
type list struct {
	calls [][]byte
	// found are the elements of the array that is being read, as far as they
	// may be calls.
	found  [][]byte
	events []webhook.Event
}

// lists holds lists that are not in use, of type *list.
var lists = sync.Pool{New: func() any { return new(list) }}

// release gives the list back. Its calls and events are not used any more.
func (l *list) release() {
	clear(l.calls[:cap(l.calls)])
	clear(l.found[:cap(l.found)])
	clear(l.events)
	l.calls, l.found, l.events = l.calls[:0], l.found[:0], l.events[:0]
	lists.Put(l)
}

// readBatch takes a batch apart. It reads its calls into l, one more than there
// may be at most, returns its writeKey, and puts into env what applies to all calls.
// How deeply calls are nested is left to be found out for each: one of them may not
// spoil the others.
func (l *list) readBatch(body []byte, env *webhook.Envelope) (key string, refused *refusal) {
	var batch, sentAt []byte
	element := func(call []byte) {
		if len(l.found) <= analytics.MaxBatchCalls {
			l.found = append(l.found, call)
		}
	}
	err := esjson.Outline(body, element, func(name, value []byte) error {
		switch string(name) {
		case "batch":
			batch = value
			l.calls, l.found = l.found, l.calls
		case "context":
			env.Context = value
		case "integrations":
			env.Integrations = value
		case "sentAt":
			sentAt = value
		case "writeKey":
			key = text(value)
		}
		l.found = l.found[:0]
		return nil
	})
	if refused = malformed(err, body, "a batch"); refused != nil {
		return key, refused
	}
	switch {
	case batch == nil:
		refused = wrong(&webhook.CallError{Field: "batch", Code: webhook.CodeMissing, Problem: "is required"})
	case batch[0] != '[':
		refused = wrong(&webhook.CallError{Field: "batch", Code: webhook.CodeWrongType, Problem: "has to be an array"})
	}
	// Clients drop a batch that is refused, so a clock that makes no sense is
	// passed over, like one that is not there.
	if sent, err := isotime.ParseJSON(sentAt); err == nil {
		env.SentAt = sent
	}
	return key, refused
}

// malformed refuses a body that could not be taken apart: what is not JSON, or
// not an object.
func malformed(err error, body []byte, what string) *refusal {
	if err == nil {
		return nil
	}
	if problem := esjson.Check(body); problem != nil {
		return refuse(http.StatusBadRequest, string(webhook.CodeMalformed), problem.Error())
	}
	return refuse(http.StatusBadRequest, string(webhook.CodeWrongType), what+" is a JSON object")
}

// text returns the text of a JSON string, "" for another value.
func text(value []byte) string {
	b, err := esjson.AppendText(nil, value)
	if err != nil {
		return ""
	}
	return string(b)
}

// event makes the event of a single call.
func (m *reservation) event(body []byte, env webhook.Envelope) ([]webhook.Event, *refusal) {
	e, err := webhook.NewEvent(body, env)
	if err != nil {
		r := reject(0, err)
		return nil, refuse(http.StatusBadRequest, string(r.code), r.message)
	}
	if err := m.take(cap(e.Body) + eventSize); err != nil {
		return nil, noMemory(err)
	}
	return []webhook.Event{e}, nil
}

// reject says what is wrong with a call: err is a *webhook.CallError.
func reject(index int, err error) rejection {
	var callErr *webhook.CallError
	if errors.As(err, &callErr) {
		return rejection{index, callErr.Code, callErr.Message()}
	}
	return rejection{index, webhook.CodeMalformed, "could not be read"}
}

// roomPerBody is about by how much a body is longer than its call, beside the
// context of the batch, in bytes: it has more times, and names that are always
// there.
const roomPerBody = 192

// maxRoom bounds the room that is made for the bodies of a batch before they are
// there, in bytes.
const maxRoom = 1 << 20

// events makes the events of the calls that were read. Their bodies share an
// array.
func (m *reservation) events(ctx context.Context, env webhook.Envelope) ([]webhook.Event, []rejection, *refusal) {
	batch, err := webhook.NewBatch(env)
	if err != nil {
		r := reject(0, err)
		return nil, nil, refuse(http.StatusBadRequest, string(r.code), r.message)
	}
	l := m.lists
	calls := l.calls
	if len(calls) > analytics.MaxBatchCalls {
		return nil, nil, refuse(http.StatusBadRequest, "too_many_calls", fmt.Sprintf("a batch has at most %d calls", analytics.MaxBatchCalls))
	}
	room := len(calls) * (batch.ContextSize() + roomPerBody)
	for _, call := range calls {
		room += len(call)
	}
	room = min(room, maxRoom)
	if err := m.take(batch.ContextSize() + len(calls)*eventSize + room); err != nil {
		return nil, nil, noMemory(err)
	}
	bodies := make([]byte, 0, room)
	size := 0
	var rejected []rejection
	for i, call := range calls {
		if ctx.Err() != nil {
			return nil, nil, later("the request took too long")
		}
		var e webhook.Event
		bodies, e, err = batch.AppendEvent(bodies, call)
		if err != nil {
			rejected = append(rejected, reject(i, err))
			continue
		}
		l.events = append(l.events, e)
		if e.Off {
			continue
		}
		// A context that the call's own overrides takes the same work to merge, so
		// it counts although it is not in the body.
		if size += max(len(e.Body), batch.ContextSize()); size > MaxBatchBodies {
			return nil, nil, refuse(http.StatusBadRequest, string(webhook.CodeTooLarge), fmt.Sprintf("the webhooks of the batch have more than %d bytes, each with the context of the batch", MaxBatchBodies))
		}
		if more := cap(bodies) - room; more > 0 {
			if err := m.take(more); err != nil {
				return nil, nil, noMemory(err)
			}
			room += more
		}
	}
	// If bodies has grown, the Body of the first events is in an earlier array.
	for i := range l.events {
		if e := &l.events[i]; !e.Off {
			n := len(e.Body)
			e.Body, bodies = bodies[:n:n], bodies[n:]
		}
	}
	return l.events, rejected, nil
}
