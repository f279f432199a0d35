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
// Each tenant and each destination is one document of the store; see store.DocumentStore. The folder
// "tenant" has the tenants, "tenant/acme" the destinations of acme, and "tenant-token/acme" its tokens.
// "tenant-link" has the keys of links. So a destination is read by its id, those of a tenant are a range, and nothing is read before somebody asks for it: neither
// memory nor opening grows with the number of tenants. Requests are signed as Standard Webhooks says,
// with a secret that this package makes.
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
	// ErrTooMany says that a tenant has as many destinations, or tokens, as it may have.
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
	// Logger gets a line for each tenant, destination and token that is deleted. Nil means no logs.
	Logger *slog.Logger
}

// A Directory has the tenants and destinations in a store. It is a webhook.LiveDirectory and a
// webhook.TxDirectory, and safe for concurrent use. It has no goroutines, and need not be closed.
type Directory struct {
	config Config
	store  store.DocumentStore
	reader store.DocumentReader // the store, or a transaction of it
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
	return &Directory{config: c, store: s, reader: s}, wrong.Err("tenants")
}

// Destination implements webhook.Directory.
func (d *Directory) Destination(ctx context.Context, id string) (webhook.Destination, error) {
	tenant, _, ours := splitID(id)
	if !ours {
		return webhook.Destination{}, webhook.ErrUnknownDestination
	}
	t, err := d.Tenant(ctx, tenant)
	var r record
	if err == nil && !t.Deleting {
		r, err = d.record(ctx, id)
	}
	if errors.Is(err, ErrUnknown) || t.Deleting {
		return webhook.Destination{}, webhook.ErrTakesNothing
	}
	return r.destination(&t), err
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
		if err != nil {
			return nil, err
		}
		all = append(all, r.destination(&t))
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
	_, seen, err := d.store.Changes(ctx, store.Latest)
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

// report calls changed for each change since a version. rotated says that the documents in
// expiryFolder have changed, too.
func (d *Directory) report(ctx context.Context, since uint64, changed func(tenant, destination string)) (rotated bool, upTo uint64, err error) {
	for {
		some, upTo, err := d.store.Changes(ctx, since)
		if err != nil || len(some) == 0 {
			return rotated, upTo, err
		}
		since = upTo
		for _, c := range some {
			tenant, below := strings.CutPrefix(c.Folder, tenantFolder+"/")
			switch {
			case c.Folder == tenantFolder:
				changed(c.Name, "")
			case below:
				changed(tenant, tenant+"/"+c.Name)
			case c.Folder == expiryFolder:
				rotated = true
			}
		}
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
			return 0, fmt.Errorf("tenants: the settings have %d bytes, the limit is %d", n, store.MaxDocument)
		}
	}
	version, err := d.store.SetDocument(ctx, held)
	if errors.Is(err, store.ErrConflict) {
		err = ErrConflict
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
			err = fmt.Errorf("tenants: document %q in the folder %q: %w", held.Name, held.Folder, err)
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
}

// refused returns faults as webhook.ConfigErrors, joined by errors.Join.
func refused(wrong check.Faults) error {
	return wrong.As(func(f check.Fault) error { return (*webhook.ConfigError)(&f) })
}
