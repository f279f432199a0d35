package webhook

import (
	"context"
	"errors"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A lease is the right of one forwarder to bury what exceeds the bounds for a destination, so that no
// two on one store bury the same excess. It is a document of the store, which says when the lease ends
// if its holder does not renew it.
type lease struct {
	store    Store
	document store.Document
	until    time.Time
}

const (
	leaseFolder = "backlog" // has the lease of a destination, under the destination's id
	leaseLasts  = time.Minute
)

// takeLease returns the lease for a destination, or nil if another forwarder has it.
func takeLease(ctx context.Context, s Store, destination string) (*lease, error) {
	d, err := s.Document(ctx, leaseFolder, destination)
	if err != nil {
		return nil, err
	}
	l := &lease{store: s, document: store.Document{Folder: leaseFolder, Name: destination, Version: d.Version}}
	var until time.Time
	if d.Version > 0 && until.UnmarshalText(d.Value) == nil {
		// One that ends much later is from before the clock was set back.
		if left := until.Sub(s.Now()); left > 0 && left <= leaseLasts {
			return nil, nil
		}
	}
	if held, err := l.renew(ctx); !held {
		return nil, err
	}
	return l, nil
}

// renew makes the lease last if less than half of its time is left. It returns false after an error,
// or if another forwarder has taken the lease.
func (l *lease) renew(ctx context.Context) (held bool, err error) {
	now := l.store.Now()
	if left := l.until.Sub(now); leaseLasts/2 < left && left <= leaseLasts {
		return true, nil
	}
	l.until = now.Add(leaseLasts)
	if l.document.Value, err = l.until.MarshalText(); err == nil {
		l.document.Version, err = l.store.SetDocument(ctx, l.document)
	}
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	return err == nil, err
}

// end removes the lease. After an error it ends by itself.
func (l *lease) end(ctx context.Context) {
	l.document.Value = nil
	_, _ = l.store.SetDocument(ctx, l.document)
}
