package tenants

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// A Destination is a place for events, of a tenant or of the program itself. It never has a secret; see
// Create, Rotate and Secrets.
type Destination struct {
	// ID is the tenant's id, a slash, and a text that Create makes. Destinations sort by it, and so by
	// the time of their creation. One without a Tenant has the id that Put was given.
	ID     string `json:"id,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	Name   string `json:"name,omitempty"` // for people, up to 255 bytes
	webhook.Settings
	// Sources names whose calls a destination without a tenant gets; see Routes.
	Sources []string `json:"sources,omitempty"`
	Version uint64   `json:"version,omitempty,string"` // grows with each change
	Changes []Change `json:"changes,omitempty"`        // the latest ten, the newest first
}

// A record is the document of a destination.
type record struct {
	Destination Destination `json:"destination"`
	Secrets     []secret    `json:"secrets"` // the newest first
	// Signing is the key of X-Signature. A destination of a tenant has neither that nor TLS.
	Signing string       `json:"signing,omitempty"`
	TLS     *webhook.PEM `json:"tls,omitempty"`
}

// A secret is a secret of a destination. It is stored in plain text, because signing needs it.
type secret struct {
	Key   string    `json:"key"`
	Until time.Time `json:"until,omitzero"` // when it is removed; zero for the newest one
}

const pauseTime = 10 * time.Second // for removing the pause of a destination that was deleted

// DefaultOverlap is how long an old secret usually stays beside the new one; see Rotate.
const DefaultOverlap = 24 * time.Hour

// Create stores a destination of the tenant in.Tenant, which must exist, with a new id and a new
// secret. The secret is returned only here. What the caller may show to the customer is
// secret.Reveal().
//
// The error joins a *webhook.ConfigError for each fault, such as a URL with an address that is not
// public. Other errors are ErrUnknown, if there is no such tenant, and ErrTooMany.
func (d *Directory) Create(ctx context.Context, in Destination, by string) (_ Destination, secret signature.Secret, err error) {
	secret = signature.NewStandardSecret()
	in, err = d.Import(ctx, in, secret, by)
	if err != nil {
		secret = ""
	}
	return in, secret, err
}

// Import is Create with a secret of another sender, which the receiver has already. The secret must
// be valid in webhook.Destination.StandardSecrets; otherwise a *webhook.ConfigError names it Secret.
func (d *Directory) Import(ctx context.Context, in Destination, existing signature.Secret, by string) (Destination, error) {
	if err := d.taken(ctx, in.Tenant); err != nil {
		return Destination{}, err
	}
	if err := d.room(ctx, folderOf(in.Tenant), 1, d.most()); err != nil {
		return Destination{}, err
	}
	in.ID, in.Version, in.Changes = newID(in.Tenant), 0, nil
	r := record{Destination: in, Secrets: []secret{{Key: existing.Reveal()}}}
	out, err := d.save(ctx, r, by, "created")
	if err != nil {
		return Destination{}, err
	}
	// Only now it is certain that no concurrent call has deleted the tenant, or has taken the last
	// place.
	if err = d.taken(ctx, in.Tenant); err == nil {
		err = d.room(ctx, folderOf(in.Tenant), 0, d.most())
	}
	if err = d.undo(ctx, err, folderOf(in.Tenant), nameOf(in.Tenant, out.ID), out.Version); err != nil {
		return Destination{}, err
	}
	return out, nil
}

// Get returns a destination, or ErrUnknown.
func (d *Directory) Get(ctx context.Context, id string) (Destination, error) {
	r, err := d.record(ctx, id)
	return r.Destination, err
}

// OldSecrets returns when the secrets that Rotate has replaced stop signing, the latest first; none if
// the newest secret signs alone.
func (d *Directory) OldSecrets(ctx context.Context, id string) (ends []time.Time, err error) {
	r, err := d.record(ctx, id)
	for _, s := range r.valid() {
		if !s.Until.IsZero() {
			ends = append(ends, s.Until)
		}
	}
	return ends, err
}

// List yields the destinations of a tenant, or those without one for "", whose ids are greater than
// after, in the order of their ids; none if there is no such tenant.
func (d *Directory) List(ctx context.Context, tenant, after string) iter.Seq2[Destination, error] {
	return func(yield func(Destination, error) bool) {
		if tenant != "" && tenantProblem(tenant) != "" {
			return
		}
		for held, err := range d.reader.Documents(ctx, folderOf(tenant), nameOf(tenant, after)) {
			if r, err := readRecord(tenant, held, err); !yield(r.Destination, err) {
				return
			}
		}
	}
}

// Update replaces the settings of the destination in.ID if it has the version in.Version. The secrets
// stay.
func (d *Directory) Update(ctx context.Context, in Destination, by string) (Destination, error) {
	r, err := d.record(ctx, in.ID)
	if err != nil {
		return Destination{}, err
	}
	if r.Destination.Version != in.Version {
		return Destination{}, ErrConflict
	}
	in.Tenant, in.Changes = r.Destination.Tenant, r.Destination.Changes
	changed := differences(r.Destination, in)
	if changed == nil {
		return in, nil
	}
	r.Destination = in
	return d.save(ctx, r, by, "changed "+strings.Join(changed, ", "))
}

// Rotate gives a destination a new secret, which is returned only here. The old ones sign beside it
// for the time overlap, usually DefaultOverlap, and are then removed. With zero they are removed at
// once. The error is ErrTooMany if more than webhook.MaxStandardSecrets would sign: no rotation takes
// back a secret before its time is over.
func (d *Directory) Rotate(ctx context.Context, id string, overlap time.Duration, by string) (Destination, signature.Secret, error) {
	r, err := d.record(ctx, id)
	if err != nil {
		return Destination{}, "", err
	}
	secret, err := r.rotate(overlap)
	if err != nil {
		return Destination{}, "", err
	}
	if len(r.Secrets) > 1 {
		if _, err = d.set(ctx, expiryFolder, expiryName(r.Secrets[1].Until, id), 0, struct{}{}); err != nil && !errors.Is(err, ErrConflict) {
			return Destination{}, "", err
		}
	}
	out, err := d.save(ctx, r, by, "rotated the secret")
	if err != nil {
		return Destination{}, "", err
	}
	return out, secret, nil
}

// Delete deletes a destination, and its pause, if it has the version. Zero stands for any version. The
// deliveries that wait for it then become dead letters, unless Forwarder.DiscardWaiting discards them.
// The end of ctx does not keep the pause. If the store fails between the two, Delete logs that the pause
// may be left, and returns nil, because the destination is deleted; webhook.RemovePause then removes it.
func (d *Directory) Delete(ctx context.Context, id string, version uint64, by string) error {
	r, err := d.record(ctx, id)
	if err != nil && !errors.Is(err, ErrUnreadable) {
		return err
	}
	if version != 0 && version != r.Destination.Version {
		return ErrConflict
	}
	tenant := r.Destination.Tenant
	if _, err = d.set(ctx, folderOf(tenant), nameOf(tenant, id), r.Destination.Version, nil); err != nil {
		return err
	}
	d.config.Logger.Info("tenants: a destination was deleted", "destination", id, "by", by)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTime)
	defer cancel()
	if err = webhook.RemovePause(ctx, d.store, id); err != nil {
		d.config.Logger.Error("tenants: a destination was deleted, but its pause may be left in the store; if so, deliveries that wait for it go on waiting",
			"destination", id, "error", err)
	}
	return nil
}

// record reads the document of a destination.
func (d *Directory) record(ctx context.Context, id string) (record, error) {
	tenant, _, ours := splitID(id)
	if !ours {
		if tenant = ""; ownProblem(id) != "" {
			return record{}, ErrUnknown
		}
	}
	held, err := d.reader.Document(ctx, folderOf(tenant), nameOf(tenant, id))
	return readRecord(tenant, held, err)
}

// readRecord decodes the document of a destination of a tenant, or of none. The argument err is the
// error of reading the document.
func readRecord(tenant string, held store.Document, err error) (r record, _ error) {
	err = get(held, err, &r)
	r.Destination.ID, r.Destination.Tenant, r.Destination.Version = held.Name, tenant, held.Version
	if tenant != "" {
		r.Destination.ID = tenant + "/" + held.Name
	}
	return r, err
}

// check returns the faults of a destination, as *webhook.ConfigErrors joined by errors.Join.
func (d *Directory) check(r *record, by string) error {
	var wrong check.Faults
	if r.Destination.Tenant == "" {
		wrong.Add("ID", ownProblem(r.Destination.ID))
	} else {
		wrong.Refuse(r.Destination.Sources != nil, "Sources", "are for destinations without a tenant")
	}
	checkText(&wrong, "Name", r.Destination.Name)
	checkText(&wrong, "by", by)
	made := r.destination(&Tenant{})
	limits := webhook.Retries{Timeout: d.config.Timeout, Window: d.config.Window} // Validate knows only the defaults
	if own := made.Retries; own != nil {
		limits = *own
		limits.Timeout, limits.Window = cmp.Or(own.Timeout, d.config.Timeout), cmp.Or(own.Window, d.config.Window)
	}
	made.Retries = &limits
	_, err := r.TLS.Parse()
	if err != nil {
		made.TLS = nil // whose faults err has
	}
	invalid := made.Validate()
	if all, ok := invalid.(interface{ Unwrap() []error }); ok && r.Destination.Tenant != "" {
		for _, fault := range all.Unwrap() {
			if f, ok := fault.(*webhook.ConfigError); ok && f.Field == "StandardSecrets[0]" {
				f.Field = "Secret" // the one that the caller of Import knows
			}
		}
	}
	return errors.Join(refused(wrong), invalid, made.CheckAddresses(d.config.AllowAddresses), err)
}

// save checks and stores a destination, without secrets whose time is over.
func (d *Directory) save(ctx context.Context, r record, by, what string) (Destination, error) {
	r.Secrets = r.valid()
	err := d.check(&r, by)
	if err != nil {
		return Destination{}, err
	}
	out := r.Destination
	out.Changes = note(out.Changes, by, what)
	r.Destination = out
	r.Destination.ID, r.Destination.Tenant, r.Destination.Version = "", "", 0 // the document has them
	out.Version, err = d.set(ctx, folderOf(out.Tenant), nameOf(out.Tenant, out.ID), out.Version, r)
	return out, err
}

// most returns how many destinations a tenant may have.
func (d *Directory) most() int {
	if d.config.MaxDestinations == webhook.Unlimited {
		return math.MaxInt - 1
	}
	return d.config.MaxDestinations
}

// destination returns what the forwarder needs.
func (r *record) destination(t *Tenant) webhook.Destination {
	made := r.Destination.Settings.Destination()
	made.ID, made.Tenant, made.Disabled = r.Destination.ID, r.Destination.Tenant, made.Disabled || t.Disabled
	made.Secret = signature.Secret(r.Signing)
	made.TLS, _ = r.TLS.Parse()
	for _, s := range r.valid() {
		made.StandardSecrets = append(made.StandardSecrets, signature.Secret(s.Key))
	}
	return made
}

// rotate puts a new secret in front of the others, which end after the time overlap, and removes those
// whose time is over.
func (r *record) rotate(overlap time.Duration) (signature.Secret, error) {
	made, until := signature.NewStandardSecret(), time.Now().Add(overlap).UTC().Truncate(time.Microsecond)
	for i := range r.Secrets {
		if s := &r.Secrets[i]; s.Until.IsZero() || until.Before(s.Until) {
			s.Until = until
		}
	}
	r.Secrets = slices.Insert(r.Secrets, 0, secret{Key: made.Reveal()})
	r.Secrets = r.valid()
	if most := webhook.MaxStandardSecrets; len(r.Secrets) > most {
		next := slices.MinFunc(r.Secrets[1:], func(a, b secret) int { return a.Until.Compare(b.Until) }).Until
		return "", fmt.Errorf("%w secrets that sign: the limit is %d; the next one ends at %s", ErrTooMany, most, next.Format(time.RFC3339))
	}
	return made, nil
}

// valid returns the secrets whose time is not over.
func (r *record) valid() []secret {
	now := time.Now()
	return slices.DeleteFunc(slices.Clone(r.Secrets), func(s secret) bool { return !s.Until.IsZero() && !now.Before(s.Until) })
}

// nameSize is the size of the name of a destination's document, in bytes.
const nameSize = 8 + 16

// newID makes the id of a destination. Its name begins with the time, so that ids sort by it until
// 2059.
func newID(tenant string) string {
	return tenant + "/" + strconv.FormatInt(time.Now().UnixMilli(), 36) + strings.ToLower(rand.Text()[:16])
}

// TenantOf returns the tenant in the id of a destination. ours reports whether Create may have made the
// id; a program may have destinations of its own with other ids.
func TenantOf(id string) (tenant string, ours bool) {
	tenant, _, ours = splitID(id)
	return tenant, ours
}

// splitID returns the tenant in the id of a destination, and the name of its document. ours reports
// whether Create may have made the id.
func splitID(id string) (tenant, name string, ours bool) {
	odd := func(c rune) bool { return !('a' <= c && c <= 'z' || '0' <= c && c <= '9') }
	tenant, name, ours = strings.Cut(id, "/")
	return tenant, name, ours && tenantProblem(tenant) == "" && len(name) == nameSize && !strings.ContainsFunc(name, odd)
}

// folderOf returns the folder with the destinations of a tenant, or of the program itself for "".
func folderOf(tenant string) string {
	if tenant == "" {
		return ownFolder
	}
	return tenantFolder + "/" + tenant
}

// nameOf returns the name of a destination's document, "" if the tenant has none with this id.
func nameOf(tenant, id string) string {
	if tenant != "" {
		_, id, _ = strings.Cut(id, "/")
	}
	return id
}

// differences names the fields in which two structs of the same type differ.
func differences[T any](a, b T) (names []string) {
	was, is := reflect.ValueOf(a), reflect.ValueOf(b)
	for _, f := range reflect.VisibleFields(was.Type()) {
		if !f.Anonymous && !reflect.DeepEqual(was.FieldByIndex(f.Index).Interface(), is.FieldByIndex(f.Index).Interface()) {
			names = append(names, f.Name)
		}
	}
	return names
}
