package receivertest

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"

	"github.com/hookferry/analytics/signature"
)

var onceChecks = []Check{
	{"an event that comes twice is accepted twice", true, 0, func(k *kit) { k.twice() }},
	{"an event that comes twice is applied once", true, applied, func(k *kit) {
		k.applied("an event that came twice", k.twice(), 1)
	}},
	{"an event that comes several times at once is accepted", true, 0, func(k *kit) { k.atOnce() }},
	{"an event that comes several times at once is applied once", true, applied, func(k *kit) {
		k.applied("an event that came several times at once", k.atOnce(), 1)
	}},
	{"an event that comes again after many others is applied once", true, applied, func(k *kit) {
		r := k.event()
		k.accept("an event", r)
		for range 50 {
			k.accept("another event", k.event())
		}
		k.accept("the first event again", r)
		k.applied("an event that came again after 50 others", r, 1)
	}},
	// Where the write key is public, as in a browser, anybody can send a call with any messageId.
	{"two events with one messageId are both applied", true, applied | standard | messageID, func(k *kit) {
		first := k.event()
		second := k.request(newID(), first.body)
		k.accept("an event", first)
		k.accept("another event with the same body", second)
		n, err := k.count(signature.Event{ID: second.id, Body: []byte(second.body)})
		if m, err2 := k.count(signature.Event{ID: first.id, Body: []byte(first.body)}); err == nil && err2 == nil && n+m < 2 {
			k.fault("two events with the ids %s and %s and one messageId: one was taken for a repetition: whoever guesses a messageId suppresses an event; go by webhook-id", first.id, second.id)
		}
	}},
	{"the answer comes after the effect", true, applied | handler, func(k *kit) {
		r := k.event()
		r.answered = func(status int) bool {
			if n, err := k.count(signature.Event{ID: r.id, Body: []byte(r.body)}); status < 300 && (n != 1 || err != nil) {
				k.fault("an event: %v, but at that moment it was applied %d times, for others who look (%v): a crash now loses it; want once, so commit first", answer{status: status}, n, err)
			}
			return false
		}
		k.accept("an event", r)
	}},
	{"an event whose answer is lost in a crash is applied once", true, applied | handler, func(k *kit) {
		r := k.event()
		lost := r.with(func(r *request) { r.answered = func(int) bool { return true } })
		k.send(lost)
		k.restart()
		k.accept("an event that comes again after a crash", r)
		k.applied("an event whose answer was lost in a crash", r, 1)
	}},
	{"an event that comes again after a restart is applied once", true, applied | handler | restart, func(k *kit) {
		r := k.event()
		k.accept("an event", r)
		k.restart()
		k.accept("the same event after a restart", r)
		k.applied("an event that came before and after a restart", r, 1)
	}},
	{"an event whose effect fails is applied when it comes again", true, applied | fail, func(k *kit) {
		r := k.event()
		k.Fail(true)
		a := k.send(r)
		k.Fail(false)
		if !a.retried() {
			k.fault("an event whose effect failed: %v; want 500", a)
		}
		k.applied("an event whose effect failed", r, 0)
		k.accept("the same event again", r)
		k.applied("an event whose effect failed at first", r, 1)
	}},
	{"each event of a batch is applied once", true, applied | batches, func(k *kit) {
		a, b, c := k.event(), k.event(), k.event()
		k.accept("an event", b)
		both := k.batch(a, b, c)
		k.accept("a batch in which it comes again", both)
		k.accept("the same batch again", both)
		k.accept("an event of the batch alone", c)
		k.applied("an event of a batch", both, 1)
	}},
}

// twice sends one event twice.
func (k *kit) twice() *request {
	r := k.event()
	k.accept("an event", r)
	k.accept("the same event again", r)
	return r
}

// atOnce sends one event several times at the same time, and then once more.
func (k *kit) atOnce() *request {
	r := k.event()
	var sent sync.WaitGroup
	answers := make([]answer, 8)
	for i := range answers {
		sent.Go(func() { answers[i] = k.send(r) })
	}
	sent.Wait()
	for _, a := range answers {
		if !a.accepted() && !a.retried() {
			k.fault("an event that came %d times at once: %v, although the event is good; want 2xx, or 503 while another request has it", len(answers), a)
		}
	}
	k.accept("the same event later", r)
	return r
}

// restart replaces the handler by that of a new process, if Config has a Restart.
func (k *kit) restart() {
	if k.Restart != nil {
		k.Transport.(*handlerTransport).handler = k.Restart()
	}
}

// batch returns a request with the events of other requests. Its id is a digest of their ids.
func (k *kit) batch(of ...*request) *request {
	var events []signature.Event
	var texts []string
	digest := sha256.New()
	for _, r := range of {
		events = append(events, signature.Event{ID: r.id, Body: []byte(r.body)})
		texts = append(texts, fmt.Sprintf(`{"id":%q,"event":%s}`, r.id, r.body))
		fmt.Fprintln(digest, r.id)
	}
	r := k.request(fmt.Sprintf("test-%x", digest.Sum(nil)), "["+strings.Join(texts, ",")+"]")
	r.events = events
	return r
}
