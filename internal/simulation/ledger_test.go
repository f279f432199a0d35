package simulation

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// A ledger follows every message by its id.
type ledger struct {
	mu       sync.Mutex
	tracked  map[string]string // id of a message that a client took, and why it may be lost, if it may
	accepted map[string]bool   // acknowledged by the collector
	took     map[taking][]time.Time
	unsure   map[taking]int // answers of an endpoint that may not have arrived
	crashes  []time.Time
}

// A taking is a message that an endpoint has answered with a 2xx status.
type taking struct{ endpoint, id string }

func newLedger() *ledger {
	return &ledger{
		tracked:  make(map[string]string),
		accepted: make(map[string]bool),
		took:     make(map[taking][]time.Time),
		unsure:   make(map[taking]int),
	}
}

func (l *ledger) track(id, mayBeLost string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tracked[id] = mayBeLost
}

// excuse notes why tracked messages may be lost.
func (l *ledger) excuse(ids []string, why string) {
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

func (l *ledger) take(endpoint, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := taking{endpoint, id}
	l.took[k] = append(l.took[k], time.Now())
}

// doubt notes that the forwarder may not know that an endpoint took a delivery.
func (l *ledger) doubt(endpoint, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsure[taking{endpoint, id}]++
}

func (l *ledger) crash() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.crashes = append(l.crashes, time.Now())
}

// repeats returns the deliveries that an endpoint took twice without a reason.
func (l *ledger) repeats() (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, at := range l.took {
		spare := l.unsure[k]
		for i := 1; i < len(at); i++ {
			if slices.ContainsFunc(l.crashes, func(crash time.Time) bool { return !crash.Before(at[i-1]) && !crash.After(at[i]) }) {
				continue
			}
			if spare--; spare < 0 {
				found = append(found, fmt.Sprintf("%s took %s at %s and again at %s", k.endpoint, k.id, at[i-1].Format(time.StampMicro), at[i].Format(time.StampMicro)))
			}
		}
	}
	return found
}

// outcome says where each message of a destination is, at the end.
type outcome struct {
	dead, waiting map[string]int // by message id
}

// losses returns the acknowledged messages that are nowhere, or in two places.
func (l *ledger) losses(destination string, endpoints []string, o outcome) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.accepted {
		delivered := slices.ContainsFunc(endpoints, func(e string) bool { return len(l.took[taking{e, id}]) > 0 })
		switch n := o.dead[id] + o.waiting[id]; {
		case n == 0 && !delivered:
			found = append(found, fmt.Sprintf("%s was acknowledged, and is lost for %s", id, destination))
		case n > 1:
			found = append(found, fmt.Sprintf("%s is stored %d times for %s", id, n, destination))
		}
	}
	for id := range o.dead {
		if _, ok := l.tracked[id]; !ok {
			found = append(found, fmt.Sprintf("the dead letter %s of %s was never sent", id, destination))
		}
	}
	return found
}

// unsent returns the messages that a client accepted and did not send, without an excuse.
func (l *ledger) unsent() (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, excuse := range l.tracked {
		if !l.accepted[id] && excuse == "" {
			found = append(found, fmt.Sprintf("%s was tracked, and has not arrived at the collector", id))
		}
	}
	return found
}

// some shows a list that may be long.
func some(found []string) string {
	slices.Sort(found)
	if n := len(found); n > 5 {
		return fmt.Sprintf("%s\nand %d more", strings.Join(found[:5], "\n"), n-5)
	}
	return strings.Join(found, "\n")
}
