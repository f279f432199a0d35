package simulation

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A ledger records what happened to every message, by its id. At the end it finds lost messages and
// repeated deliveries.
type ledger struct {
	mu          sync.Mutex
	tracked     map[string]string // by accepted message: why it may be lost, or empty
	accepted    map[string]bool   // messages that the collector acknowledged
	received    map[receipt][]time.Time
	unconfirmed map[receipt]int   // receipts whose answer came too late for the forwarder
	doubtful    map[delivery]bool // a settlement of them failed
	crashes     []time.Time
	stored      map[delivery]int // how many puts have stored it
	restored    []string         // those that should not have, for a summary
	full        bool             // the disk was full once
}

// A receipt says that an endpoint answered the delivery of a message with a 2xx status.
type receipt struct{ endpoint, id string }

// A delivery is a message for a destination.
type delivery struct{ destination, id string }

func newLedger() *ledger {
	return &ledger{
		tracked:     make(map[string]string),
		accepted:    make(map[string]bool),
		received:    make(map[receipt][]time.Time),
		unconfirmed: make(map[receipt]int),
		doubtful:    make(map[delivery]bool),
		stored:      make(map[delivery]int),
	}
}

func (l *ledger) track(id, mayBeLost string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tracked[id] = mayBeLost
}

// allowLoss records why tracked messages may be lost.
func (l *ledger) allowLoss(ids []string, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.tracked[id] = why
	}
}

func (l *ledger) accept(ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.accepted[id] = true
	}
}

func (l *ledger) receive(endpoint, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := receipt{endpoint, id}
	l.received[k] = append(l.received[k], time.Now())
}

// unconfirm records that the forwarder may not learn of a receipt, and so may repeat the delivery.
func (l *ledger) unconfirm(endpoint, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unconfirmed[receipt{endpoint, id}]++
}

// doubt records settlements that failed. They may be on the disk all the same, which a crash shows: then
// nobody has counted those that the history did not keep.
func (l *ledger) doubt(ss []store.Settlement) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range ss {
		l.doubtful[delivery{ss[i].Delivery.Destination, ss[i].Delivery.MessageID}] = true
	}
}

// store records that a put has stored a delivery, and reports whether an earlier put had. That is a fault,
// unless the disk was full: then the store forgets ids rather than stay full.
func (l *ledger) store(d *store.Delivery) (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := delivery{d.Destination, d.MessageID}
	if l.stored[k]++; l.stored[k] > 1 && !l.full {
		l.restored = append(l.restored, fmt.Sprintf("%s was stored again for %s", d.MessageID, d.Destination))
	}
	return l.stored[k] > 1
}

// fill records that the disk becomes full.
func (l *ledger) fill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = true
}

func (l *ledger) crash() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.crashes = append(l.crashes, time.Now())
}

// repeats returns the deliveries that an endpoint received again without a reason. A reason is a
// crash between the two deliveries, or an unconfirmed receipt.
func (l *ledger) repeats() (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, at := range l.received {
		spare := l.unconfirmed[k]
		for i := 1; i < len(at); i++ {
			if slices.ContainsFunc(l.crashes, func(crash time.Time) bool { return !crash.Before(at[i-1]) && !crash.After(at[i]) }) {
				continue
			}
			if spare--; spare < 0 {
				found = append(found, fmt.Sprintf("%s received %s at %s and again at %s", k.endpoint, k.id, at[i-1].Format(time.StampMicro), at[i].Format(time.StampMicro)))
			}
		}
	}
	return found
}

// An outcome counts the stored messages of a destination at the end of a run.
type outcome struct {
	dead, kept map[string]int // number of dead letters and of delivered ones, by message id
}

// losses returns the acknowledged messages that were neither delivered nor stored, or were stored
// more than once. It also returns the dead letters of messages that were never tracked, and counts the
// messages that were delivered without doubt and are not stored.
func (l *ledger) losses(destination string, endpoints []string, o outcome) (found []string, unkept int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.accepted {
		delivered := slices.ContainsFunc(endpoints, func(e string) bool { return len(l.received[receipt{e, id}]) > 0 })
		switch n := o.dead[id] + o.kept[id]; {
		case n == 0 && !delivered:
			found = append(found, fmt.Sprintf("%s was acknowledged, but is lost for %s", id, destination))
		case n == 0 && !l.doubtful[delivery{destination, id}]:
			unkept++
		case n > max(1, l.stored[delivery{destination, id}]):
			found = append(found, fmt.Sprintf("%s is stored %d times for %s", id, n, destination))
		}
	}
	for id := range o.dead {
		if _, ok := l.tracked[id]; !ok {
			found = append(found, fmt.Sprintf("the dead letter %s of %s was never tracked", id, destination))
		}
	}
	return found, unkept
}

// unsent returns the messages that a client accepted but did not send, unless they may be lost.
func (l *ledger) unsent() (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, mayBeLost := range l.tracked {
		if !l.accepted[id] && mayBeLost == "" {
			found = append(found, fmt.Sprintf("%s was tracked, but has not arrived at the collector", id))
		}
	}
	return found
}

// summary returns the first lines of a list that may be long.
func summary(found []string) string {
	slices.Sort(found)
	if n := len(found); n > 5 {
		return fmt.Sprintf("%s\nand %d more", strings.Join(found[:5], "\n"), n-5)
	}
	return strings.Join(found, "\n")
}
