// Package tenants keeps the tenants of a program and their destinations in the store that has its
// deliveries: in memory, a folder, PostgreSQL or NATS.
//
//	directory, err := tenants.New(store, tenants.Config{})
//	forwarder, err := webhook.New(webhook.Config{Store: store, Directory: directory})
//	...
//	_, err = directory.CreateTenant(ctx, tenants.Tenant{ID: "acme"}, "ann@example.com")
//	d, secret, err := directory.Create(ctx, tenants.Destination{
//		Tenant: "acme",
//		Settings: webhook.Settings{
//			Endpoints: []webhook.Endpoint{{URL: "https://acme.example/webhooks"}},
//			Filter:    webhook.Filter{Include: []string{"invoice.*"}},
//		},
//	}, "ann@example.com")
//
// Each tenant and each destination is one document of the store; see store.DocumentStore. The
// folder "tenant" has the tenants, "tenant/acme" the destinations of acme, and "tenant-token/acme"
// its tokens. "tenant-link" has the keys of links. A program may have destinations of its own
// beside them, in the folder "destination"; see Put and Routes. So a destination is read by its id,
// those of a tenant are a range, and nothing is read before somebody asks for it: neither memory
// nor opening grows with the number of tenants. Requests are signed as Standard Webhooks says, with
// a secret that this package makes.
//
// A change is effective on each node of the store within two seconds, because the forwarders follow
// the changes. Every change names the version that it replaces, so of two that were made at once, one
// gets ErrConflict. After any other error of a store, it is unknown whether the change was made.
package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

var (
	// ErrUnknown says that there is no such tenant or destination.
	ErrUnknown = errors.New("tenants: not found")
	// ErrConflict says that somebody else has changed the tenant or destination since it was read, or
	// has created it. Read it again.
	ErrConflict = errors.New("tenants: it was changed meanwhile")
	// ErrUnreadable says that the document of a tenant or destination is not what this package writes.
	// Until somebody replaces it, deliveries for the destination are stored, and wait.
	ErrUnreadable = errors.New("tenants: the document is not readable")
	// ErrTooLarge says that a document has more bytes than one of a store may have.
	ErrTooLarge = errors.New("tenants: the settings are too large")
	// ErrTooMany says that a tenant has as many destinations, or tokens, as it may have, or that as many
	// secrets of a destination sign as can.
	ErrTooMany = errors.New("tenants: the tenant has too many")
)

// The folders of documents. The folder of a tenant's destinations is tenantFolder, a slash, and the
// tenant's id. A document in expiryFolder says when a secret is to be removed; see expiryName.
const (
	tenantFolder = "tenant"
	expiryFolder = "tenant-expiry"
)

const (
	DefaultMaxDestinations = 50 // of a tenant

	poll      = time.Second // between two looks at what has changed
	maxText   = 255         // bytes of a name, and of the author of a change
	maxChange = 10          // changes that a tenant or destination remembers
)

// Config configures a Directory. The zero value is ready for use.
type Config struct {
	// MaxDestinations bounds the destinations of a tenant; Create then returns ErrTooMany. Zero means
	// DefaultMaxDestinations, webhook.Unlimited no bound.
	MaxDestinations int
	// Timeout and Window bound the settings of destinations with the same names. They are those of
	// webhook.Config, or those of its Retries if it has any. The defaults are those of
	// webhook.Config.
	Timeout, Window time.Duration
	// AllowAddresses lists addresses that URLs may have although they are not public, as
	// webhook.Config.AllowAddresses does.
	AllowAddresses []netip.Prefix
	// Routed is called after Routes or Owned have changed. It must not block. Nil is not called.
	Routed func()
	// Logger gets a line for each tenant, destination and token that is deleted, and for each document
	// that is not readable. Nil means no logs.
	Logger *slog.Logger
}

// A Directory has the tenants and destinations in a store. It is a webhook.LiveDirectory and a
// webhook.TxDirectory, and safe for concurrent use. It has no goroutines, and need not be closed.
type Directory struct {
	config Config
	store  store.DocumentStore
	reader store.DocumentReader // the store, or a transaction of it
	own    *own
}

var (
	_ webhook.LiveDirectory = (*Directory)(nil)
	_ webhook.TxDirectory   = (*Directory)(nil)
)

// New returns the directory of a store. It reads nothing. The caller closes the store.
func New(s store.DocumentStore, c Config) (*Directory, error) {
	var wrong check.Faults
	wrong.Refuse(s == nil, "Store", "is required")
	check.Least(&wrong, "MaxDestinations", &c.MaxDestinations, webhook.Unlimited, DefaultMaxDestinations)
	check.Least(&wrong, "Timeout", &c.Timeout, 0, webhook.DefaultTimeout)
	check.Least(&wrong, "Window", &c.Window, 0, webhook.DefaultWindow)
	if c.AllowAddresses = slices.Clone(c.AllowAddresses); c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Routed == nil {
		c.Routed = func() {}
	}
	return &Directory{config: c, store: s, reader: s, own: new(own)}, wrong.Err("tenants")
}

// Destination implements webhook.Directory.
func (d *Directory) Destination(ctx context.Context, id string) (webhook.Destination, error) {
	tenant, _, ours := splitID(id)
	if !ours {
		r, err := d.record(ctx, id)
		if errors.Is(err, ErrUnknown) {
			err = webhook.ErrUnknownDestination
		}
		return d.readable(&r, &Tenant{}, err)
	}
	t, err := d.Tenant(ctx, tenant)
	var r record
	if err == nil && !t.Deleting {
		r, err = d.record(ctx, id)
	}
	if errors.Is(err, ErrUnknown) || t.Deleting {
		return webhook.Destination{}, webhook.ErrTakesNothing
	}
	return d.readable(&r, &t, err)
}

// readable returns the destination of a record. One that is not readable has only its id: events are
// stored for it, and the forwarder holds them because it is not valid. The argument err is the error
// of reading the record.
func (d *Directory) readable(r *record, t *Tenant, err error) (webhook.Destination, error) {
	if errors.Is(err, ErrUnreadable) {
		d.config.Logger.Error("tenants: the document of a destination is not readable; its deliveries wait until somebody corrects it", "destination", r.Destination.ID, "error", err)
		return webhook.Destination{ID: r.Destination.ID, Tenant: r.Destination.Tenant}, nil
	}
	return r.destination(t), err
}

// Destinations implements webhook.Directory.
func (d *Directory) Destinations(ctx context.Context, tenant string) (all []webhook.Destination, err error) {
	t, err := d.Tenant(ctx, tenant)
	if errors.Is(err, ErrUnknown) || t.Deleting {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	for held, err := range d.reader.Documents(ctx, folderOf(tenant), "") {
		r, err := readRecord(tenant, held, err)
		made, err := d.readable(&r, &t, err)
		if err != nil {
			return nil, err
		}
		all = append(all, made)
	}
	return all, nil
}

// WithTx implements webhook.TxDirectory. If the store cannot read through a transaction, because it
// has no pool of connections, the result answers as d does.
func (d *Directory) WithTx(tx any) webhook.Directory {
	in := *d
	if s, ok := d.store.(store.TxDocuments); ok {
		in.reader = s.DocumentsTx(tx)
	}
	return &in
}

// Follow implements webhook.LiveDirectory. Each second it asks the store what has changed, which is
// one small question if nothing has. It also removes the secrets whose time is over.
func (d *Directory) Follow(ctx context.Context, changed func(tenant, destination string)) error {
	seen, err := d.begin(ctx)
	if err != nil {
		return err
	}
	changed("", "")
	expiry, err := d.expire(ctx)
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		var rotated bool
		rotated, seen, err = d.report(ctx, seen, changed)
		if err == nil && (rotated || !expiry.IsZero() && !time.Now().Before(expiry)) {
			expiry, err = d.expire(ctx)
		}
	}
	return err
}

// begin returns the version from which on Follow reports changes. What Load has read is brought up to
// date.
func (d *Directory) begin(ctx context.Context) (seen uint64, err error) {
	silent := func(_, _ string) {}
	_, seen, err = d.report(ctx, d.own.upTo(), silent)
	if errors.Is(err, store.ErrTooOld) {
		if err = d.Load(ctx); err == nil { // also what others have changed meanwhile
			_, seen, err = d.report(ctx, d.own.upTo(), silent)
		}
	}
	return seen, err
}

// report calls changed for each change since a version. rotated says that the documents in
// expiryFolder have changed, too.
func (d *Directory) report(ctx context.Context, since uint64, changed func(tenant, destination string)) (rotated bool, upTo uint64, err error) {
	routed := false
	for {
		some, upTo, err := d.store.Changes(ctx, since)
		if err != nil || len(some) == 0 {
			if routed {
				d.config.Routed()
			}
			return rotated, upTo, err
		}
		for _, c := range some {
			tenant, below := strings.CutPrefix(c.Folder, tenantFolder+"/")
			switch {
			case c.Folder == tenantFolder:
				changed(c.Name, "")
			case below:
				changed(tenant, tenant+"/"+c.Name)
			case c.Folder == expiryFolder:
				rotated = true
			case c.Folder == ownFolder:
				if err := d.reread(ctx, c.Name, c.Version); err != nil {
					return rotated, since, err
				}
				routed = true
				changed("", c.Name)
			}
		}
		since = upTo
		d.own.mu.Lock()
		d.own.seen = upTo
		d.own.mu.Unlock()
	}
}

// expire removes the secrets whose time is over, and returns when the next one is to be removed, zero
// if there is none. Other nodes may do the same at once.
func (d *Directory) expire(ctx context.Context) (next time.Time, err error) {
	for held, err := range d.store.Documents(ctx, expiryFolder, "") {
		if err != nil {
			return next, err
		}
		at, id := parseExpiry(held.Name)
		if time.Now().Before(at) {
			return at, nil
		}
		r, err := d.record(ctx, id)
		if err == nil && len(r.valid()) < len(r.Secrets) {
			_, err = d.save(ctx, r, "", "removed the old secret")
		}
		if held.Value = nil; err == nil || errors.Is(err, ErrUnknown) || errors.Is(err, ErrConflict) { // any change removes old secrets
			_, err = d.store.SetDocument(ctx, held)
		}
		if err != nil && !errors.Is(err, store.ErrConflict) {
			return next, err
		}
	}
	return time.Time{}, nil
}

// expiryName names the document that says when a secret of a destination is to be removed. The names
// sort by time.
func expiryName(at time.Time, id string) string { return fmt.Sprintf("%016x %s", at.UnixMicro(), id) }

func parseExpiry(name string) (at time.Time, id string) {
	hex, id, _ := strings.Cut(name, " ")
	micros, _ := strconv.ParseInt(hex, 16, 64)
	return time.UnixMicro(micros), id
}

// set stores the value of a document, as JSON, or removes it if value is nil.
func (d *Directory) set(ctx context.Context, folder, name string, version uint64, value any) (uint64, error) {
	held := store.Document{Folder: folder, Name: name, Version: version}
	if value != nil {
		var err error
		if held.Value, err = json.Marshal(value); err != nil {
			return 0, fmt.Errorf("tenants: %w", err)
		}
		if n := len(held.Value); n > store.MaxDocument {
			return 0, fmt.Errorf("%w: they have %d bytes, the limit is %d", ErrTooLarge, n, store.MaxDocument)
		}
	}
	version, err := d.store.SetDocument(ctx, held)
	if errors.Is(err, store.ErrConflict) {
		err = ErrConflict
	}
	if err == nil && folder == ownFolder {
		if held.Version = version; value == nil {
			held.Version = 0
		}
		d.learn(held, version)
		d.config.Routed()
	}
	return version, err
}

// get decodes a document. The argument err is the error of reading the document.
func get(held store.Document, err error, value any) error {
	if err == nil && held.Version == 0 {
		err = ErrUnknown
	}
	if err == nil {
		if err = json.Unmarshal(held.Value, value); err != nil {
			err = fmt.Errorf("%w: %q in the folder %q: %w", ErrUnreadable, held.Name, held.Folder, err)
		}
	}
	return err
}

// A Change says who has changed a tenant or destination, when, and what.
type Change struct {
	At   time.Time `json:"at"`
	By   string    `json:"by"`   // as the caller named itself, in up to 255 bytes; empty if it was this package
	What string    `json:"what"` // such as "created", or "changed Filter, Disabled"
}

// note returns changes with one more in front, at most maxChange.
func note(changes []Change, by, what string) []Change {
	changes = slices.Insert(slices.Clone(changes), 0, Change{time.Now().UTC().Truncate(time.Microsecond), by, what})
	return changes[:min(len(changes), maxChange)]
}

// checkText refuses texts that are too long.
func checkText(wrong *check.Faults, field, text string) {
	wrong.Refuse(len(text) > maxText, field, "has %d bytes, the limit is %d", len(text), maxText)
	wrong.Refuse(field == "by" && strings.ContainsFunc(text, unicode.IsControl), field, "has a control character")
}

// refused returns faults as webhook.ConfigErrors, joined by errors.Join.
func refused(wrong check.Faults) error {
	return wrong.As(func(f check.Fault) error { return (*webhook.ConfigError)(&f) })
}
