package collector

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/isotime"
)

// patience bounds how long a request waits after its body has been read: for a slot, for the lookup
// of its write key, and for the store, in total. So a client has its answer within 5 seconds.
const patience = 4 * time.Second

// Estimates, in bytes, of the memory that a request needs besides the bodies of its webhooks. Each
// call takes eventSize for its event or its rejection. A wrong call also takes errorSize and the
// text of its error. The forwarder and its store make one delivery of each event for each
// destination. A delivery takes deliverySize and a copy of the body.
const (
	eventSize    = 320
	errorSize    = 128
	deliverySize = 896
)

// A request becomes webhooks: one for each call and destination. The bodies of all these webhooks
// together have at most growth + growthFactor * n bytes, where n is the size of the request.
const (
	growth       = 4 << 20
	growthFactor = 4
)

// serveCalls serves a request with calls: one call of the type kind or, if kind is "", a batch. It
// answers once all good calls are durable.
func (h *Handler) serveCalls(w http.ResponseWriter, r *http.Request, kind string, a *Answered) {
	ip := h.config.ClientIP(r)
	m := h.shares.reserve(ip)
	defer m.release()
	env := event.Envelope{
		Type:       kind,
		ReceivedAt: time.Now(),
		IP:         ip,
		// Browsers send an Origin with every POST (Fetch standard, section 3.2).
		// Other clients have no reason to.
		Browser: r.Header.Get("Origin") != "",
	}
	err := h.take(w, r, env, m, a)
	if err != nil {
		m.rest(0) // give the slot back: writing the answer may block on the client
		a.error(w, err)
		if a.Status == http.StatusBadRequest && kind != "" {
			a.Rejected = 1
		}
		return
	}
	a.success(w, m.contents.rejected)
}

// take reads and forwards the calls of a request. The error is a *refusal.
func (h *Handler) take(w http.ResponseWriter, r *http.Request, env event.Envelope, m *reservation, a *Answered) error {
	// If the header has the write key, look up its source first. So a request with an unknown key,
	// or beyond a limit, is refused before its body is read.
	var source Source
	var err error
	key := basicKey(r.Header)
	if key != "" {
		if source, err = h.admit(r.Context(), key, m, a); err != nil {
			return err
		}
	}
	single := env.Type != ""
	limit := analytics.MaxBatchSize
	if single {
		limit = analytics.MaxCallSize
	}
	body, compressed, err := h.read(w, r, m, limit, a)
	if err != nil {
		return err
	}
	// Some clients send their calls and close the connection. Their calls must not be lost, so ctx
	// does not end with the connection.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), patience)
	defer cancel()
	if err := m.work(ctx); err != nil {
		return err
	}
	if compressed {
		if body, err = m.inflate(body, limit); err != nil {
			return err
		}
	}
	body = bytes.TrimPrefix(body, []byte("\uFEFF")) // RFC 8259, section 8.1
	bodyKey := ""
	m.contents = contentsPool.Get().(*contents)
	if single {
		m.contents.calls = append(m.contents.calls, body)
	}
	switch {
	case !single:
		bodyKey, err = m.contents.readBatch(body, &env)
	case key == "":
		bodyKey, err = readKey(body)
	}
	if err != nil {
		return err
	}
	if key == "" {
		m.rest(0) // give the slot back: looking the key up may take long
		if source, err = h.admit(ctx, bodyKey, m, a); err != nil {
			return err
		}
		if err := m.work(ctx); err != nil {
			return err
		}
	}
	env.Source = source.id(cmp.Or(key, bodyKey))
	if err := m.events(ctx, env, len(body), &source); err != nil {
		return err
	}
	events, rejected, filtered := m.contents.events, m.contents.rejected, m.contents.filtered
	deliveries, stored := 0, 0 // how many deliveries events become, and the bytes of their bodies
	for i := range events {
		if !events[i].Off {
			deliveries += len(source.Destinations)
			stored += len(source.Destinations) * len(events[i].Body)
		}
	}
	m.rest(stored)
	m.dropBody()
	if len(rejected) > 0 {
		first := rejected[0]
		if single {
			return wrong(first.Code, first.Message)
		}
		h.config.Logger.Debug("collector: calls refused", "source", source.Name,
			"refused", len(rejected), "taken", len(events)+filtered, "code", first.Code, "message", first.Message)
	}
	if err := m.take(deliveries*deliverySize + stored); err != nil {
		return err
	}
	if err := source.spend(len(events)+filtered+len(rejected), stored); err != nil {
		return err
	}
	if len(events) > 0 && len(source.Destinations) > 0 {
		if err := h.config.Forwarder.ForwardEvents(ctx, source.Destinations, events...); err != nil {
			h.forwards.bad(err)
			return later("the queue cannot take calls now")
		}
		h.forwards.good()
	}
	a.Accepted, a.Filtered, a.Rejected = len(events)+filtered, filtered, len(rejected)
	a.BadTimes = m.contents.badTimes
	for i := range events {
		if events[i].BadTime {
			a.BadTimes++
		}
	}
	return nil
}

// admit finds the source of a request. It refuses the request if the source has already reached a
// limit, so that the handler need not read the body of such a request.
func (h *Handler) admit(ctx context.Context, key string, m *reservation, a *Answered) (Source, error) {
	source, err := h.source(ctx, key)
	if a.Source = source.Name; err != nil {
		return source, err
	}
	if err := source.spend(0, 0); err != nil {
		return source, err
	}
	// Sources without a name are told apart by their keys.
	return source, m.join(cmp.Or(source.Name, key))
}

// readKey returns the writeKey of a call, "" if there is none.
func readKey(body []byte) (key string, err error) {
	err = esjson.Members(body, func(name, value []byte) error {
		if string(name) == "writeKey" {
			key = text(value)
		}
		return nil
	})
	return key, malformed(err, body, "a call")
}

// contents holds the calls of a request, and the events and rejections that are made of them.
type contents struct {
	calls    [][]byte
	events   []event.Event
	rejected []rejection
	filtered int  // good calls that the filter of the source leaves out
	badTimes int  // good calls with a time that cannot be read
	badSent  bool // the sentAt of the batch cannot be read
}

var contentsPool = sync.Pool{New: func() any { return new(contents) }}

// scratches is a pool of buffers (*[]byte), each for one body at a time. The buffers do not count
// towards Config.MaxMemory. Only a request with a slot uses a buffer, so no more buffers than slots
// are in use. The largest body has 177,000 bytes. It comes from a call of 32 KB and a context of
// 32 KB that are full of numbers such as 1e20: 4 bytes in the request, and 21 in the body.
var scratches = sync.Pool{New: func() any { return new([]byte) }}

func (l *contents) release() {
	clear(l.calls)
	clear(l.events)
	clear(l.rejected)
	*l = contents{calls: l.calls[:0], events: l.events[:0], rejected: l.rejected[:0]}
	contentsPool.Put(l)
}

// readBatch parses a batch, and returns its writeKey. It puts the calls into l.calls, and the
// fields that apply to all calls into env. Of too many calls it keeps MaxBatchCalls + 1, so that
// the method events notices them. It does not check how deeply the calls are nested: events rejects
// a call that is nested too deeply, and no other.
func (l *contents) readBatch(body []byte, env *event.Envelope) (key string, err error) {
	var batch, sentAt []byte
	kept := 0 // calls[kept:] are the elements of the array that is being read
	element := func(call []byte) {
		if len(l.calls)-kept <= analytics.MaxBatchCalls {
			l.calls = append(l.calls, call)
		}
	}
	err = esjson.Outline(body, element, func(name, value []byte) error {
		switch string(name) {
		case "batch":
			batch = value
			// If the body has the field batch several times, the last one counts.
			l.calls, kept = slices.Delete(l.calls, 0, kept), len(l.calls)-kept
		case "context":
			env.Context = value
		case "integrations":
			env.Integrations = value
		case "sentAt":
			sentAt = value
		case "writeKey":
			key = text(value)
		}
		l.calls = slices.Delete(l.calls, kept, len(l.calls))
		return nil
	})
	switch {
	case err != nil:
		return key, malformed(err, body, "a batch")
	case batch == nil:
		return key, wrong(event.CodeMissing, "batch is required")
	case batch[0] != '[':
		return key, wrong(event.CodeWrongType, "batch has to be an array")
	}
	// Ignore a sentAt that is not a time. Refusing the batch would lose it, because clients drop a
	// refused batch.
	if sentAt != nil && sentAt[0] != 'n' {
		env.SentAt, err = isotime.ParseJSON(sentAt)
		l.badSent = err != nil
	}
	return key, nil
}

// malformed returns the refusal of a body that is not a JSON object, nil if err is nil.
func malformed(err error, body []byte, what string) error {
	if err == nil {
		return nil
	}
	if problem := esjson.Check(body); problem != nil {
		return wrong(event.CodeMalformed, problem.Error())
	}
	return wrong(event.CodeWrongType, what+" is a JSON object")
}

// text returns the text of a JSON string. For any other value it returns "".
func text(value []byte) string {
	b, err := esjson.AppendText(nil, value)
	if err != nil {
		return ""
	}
	return string(b)
}

// reject returns the rejection of the call with this index. err is normally a *event.CallError.
func reject(index int, err error) rejection {
	if callErr, ok := errors.AsType[*event.CallError](err); ok {
		return rejection{index, callErr.Code, callErr.Message()}
	}
	return rejection{index, event.CodeMalformed, "could not be read"}
}

// roomPerBody is the approximate number of bytes that a body has in addition to its call and the
// context of the batch, for example for further timestamps.
const roomPerBody = 192

// maxChunk is the largest size, in bytes, of an array that several bodies share. A body that is
// larger gets an array of its own.
const maxChunk = 256 << 10

// events makes events of the calls of a request in m.contents. The argument size is the size of the
// request in bytes. The bodies of the events share a few arrays.
//
// A body is first encoded into a scratch buffer, so that its length is known before memory is taken
// for it. Calls whose webhooks exceed the bound at growth are rejected. If there are such calls and
// no other call is good, the request is refused.
func (m *reservation) events(ctx context.Context, env event.Envelope, size int, source *Source) error {
	encoder, err := event.NewEncoder(env)
	if err != nil {
		r := reject(0, err)
		return wrong(r.Code, r.Message)
	}
	l := m.contents
	calls := l.calls
	if len(calls) > analytics.MaxBatchCalls {
		return wrong("too_many_calls", fmt.Sprintf("a batch has at most %d calls", analytics.MaxBatchCalls))
	}
	if err := m.take(encoder.ContextSize() + len(calls)*eventSize); err != nil {
		return err
	}
	scratch := scratches.Get().(*[]byte)
	defer scratches.Put(scratch)

	var over rejection // rejection of the latest call that exceeds the bound at growth
	allowed := growth + growthFactor*size
	left := allowed / max(len(source.Destinations), 1) // bytes left for bodies
	work := 2 * allowed                                // bytes left to encode, also for rejected calls
	expected := len(calls)*(encoder.ContextSize()+roomPerBody) + size
	var chunk []byte
	for i, call := range calls {
		if ctx.Err() != nil {
			return later("the request took too long")
		}
		// Count the context of the batch even if the call's own context overrides all of it,
		// because merging the two contexts takes the same work in any case.
		cost := encoder.ContextSize()
		var e event.Event
		if cost <= min(left, work) {
			*scratch, e, err = encoder.Append((*scratch)[:0], call)
			if err != nil {
				r := reject(i, err)
				if err := m.take(errorSize + len(r.Message)); err != nil {
					return err
				}
				l.rejected = append(l.rejected, r)
				continue
			}
			e.BadTime = e.BadTime || l.badSent
			if e.Off {
				l.events = append(l.events, e)
				continue
			}
			cost = max(cost, len(e.Body))
			work -= cost
			if source.Filter != nil && !source.Filter(e) {
				l.filtered++
				if e.BadTime {
					l.badTimes++
				}
				continue
			}
		}
		if e.Body == nil || cost > left {
			if over.Code == "" {
				over = rejection{Code: event.CodeTooLarge, Message: fmt.Sprintf("the webhooks of the request have more than %d bytes, each counted for every destination and with the context of the batch", allowed)}
			}
			over.Index = i
			l.rejected = append(l.rejected, over)
			continue
		}
		left -= cost
		if n := len(e.Body); n > cap(chunk)-len(chunk) {
			n = max(n, min(expected, maxChunk))
			if err := m.take(n); err != nil {
				return err
			}
			chunk = make([]byte, 0, n)
		}
		expected -= len(call) + encoder.ContextSize() + roomPerBody
		at := len(chunk)
		chunk = append(chunk, e.Body...)
		e.Body = chunk[at:len(chunk):len(chunk)]
		l.events = append(l.events, e)
	}
	if len(l.events)+l.filtered == 0 && over.Code != "" {
		return wrong(over.Code, over.Message)
	}
	return nil
}
