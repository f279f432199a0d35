package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// ownFolder has the documents of the program's own destinations, those of no tenant, under their ids.
const ownFolder = "destination"

// An Own says of a destination without a tenant what a program needs to route calls to it.
type Own struct {
	ID         string
	Sources    []string // see Destination; nobody may change it
	URLs       []string // of the endpoints, perhaps with credentials; nobody may change it
	Disabled   bool
	Unreadable bool // the document is not JSON of a destination; Sources is what is readable
	version    uint64
}

// An own has all destinations without a tenant, about 300 bytes for each.
type own struct {
	mu     sync.Mutex
	loaded bool
	seen   uint64 // the version of the documents up to which byID is right
	byID   map[string]Own
	routes map[string][]string // the sorted ids, by source; a list does not change
}

// upTo returns the version from which on changes are to be learned, store.Latest without Load.
func (o *own) upTo() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.loaded {
		return store.Latest
	}
	return o.seen
}

// Load reads all destinations without a tenant, one at a time, for Owned and Routes. Follow then keeps
// them up to date, also through errors of the store. Call it before Follow, unless there are none.
func (d *Directory) Load(ctx context.Context) error {
	_, seen, err := d.store.Changes(ctx, store.Latest)
	if err != nil {
		return err
	}
	byID := make(map[string]Own)
	for held, err := range d.store.Documents(ctx, ownFolder, "") {
		if err != nil {
			return err
		}
		byID[held.Name] = d.ownOf(held)
	}
	o := d.own
	o.mu.Lock()
	for id, this := range o.byID { // this node may have changed some meanwhile
		if this.version > max(seen, byID[id].version) {
			byID[id] = this
		}
	}
	o.loaded, o.seen, o.byID, o.routes = true, seen, byID, make(map[string][]string)
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		for _, source := range byID[id].Sources {
			o.routes[source] = append(o.routes[source], id)
		}
	}
	o.mu.Unlock()
	d.config.Routed()
	return nil
}

// ownOf describes a document. It keeps the sources of a document whose other settings are wrong.
func (d *Directory) ownOf(held store.Document) Own {
	var r record
	err := json.Unmarshal(held.Value, &r)
	if err != nil {
		d.config.Logger.Error("tenants: the document of a destination is not readable; its deliveries wait until somebody corrects it", "destination", held.Name, "error", err)
		var part struct {
			Destination struct {
				Sources []string `json:"sources"`
			} `json:"destination"`
		}
		_ = json.Unmarshal(held.Value, &part)
		r.Destination.Sources = part.Destination.Sources
	}
	this := Own{ID: held.Name, Sources: slices.Clip(r.Destination.Sources), Disabled: r.Destination.Disabled, Unreadable: err != nil, version: held.Version}
	for _, e := range r.Destination.Endpoints {
		this.URLs = append(this.URLs, e.URL)
	}
	return this
}

// learn puts a document of a destination without a tenant, or its removal, into effect. The argument
// version is that of the change, unless this node knows a newer one.
func (d *Directory) learn(held store.Document, version uint64) {
	o := d.own
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.byID[held.Name]
	if version = max(version, held.Version); !o.loaded || version <= was.version {
		return
	}
	is := Own{}
	if delete(o.byID, held.Name); held.Version != 0 {
		is = d.ownOf(held)
		o.byID[held.Name] = is
	}
	routes := maps.Clone(o.routes)
	for _, source := range was.Sources {
		if i, found := slices.BinarySearch(routes[source], held.Name); found && !slices.Contains(is.Sources, source) {
			routes[source] = slices.Concat(routes[source][:i], routes[source][i+1:])
		}
	}
	for _, source := range is.Sources {
		if i, found := slices.BinarySearch(routes[source], held.Name); !found {
			routes[source] = slices.Concat(routes[source][:i], []string{held.Name}, routes[source][i:])
		}
	}
	o.routes = routes
}

// reread puts the document of a destination without a tenant into effect, if Load was called.
func (d *Directory) reread(ctx context.Context, id string, version uint64) error {
	held, err := d.store.Document(ctx, ownFolder, id)
	if err == nil {
		held.Name = id
		d.learn(held, version)
	}
	return err
}

// Routes returns the ids of the destinations without a tenant that get the calls of each source, as
// of Load and of all changes since. Nobody may change the result, which does not change either.
func (d *Directory) Routes() map[string][]string {
	d.own.mu.Lock()
	defer d.own.mu.Unlock()
	return d.own.routes
}

// Owned returns the destinations without a tenant in no order, as of Load and of all changes since.
func (d *Directory) Owned() []Own {
	d.own.mu.Lock()
	defer d.own.mu.Unlock()
	return slices.AppendSeq(make([]Own, 0, len(d.own.byID)), maps.Values(d.own.byID))
}

// FindOwn returns the destination without a tenant that has an id, as of Load and of all changes since.
func (d *Directory) FindOwn(id string) (this Own, ok bool) {
	d.own.mu.Lock()
	defer d.own.mu.Unlock()
	this, ok = d.own.byID[id]
	return this, ok
}

// Secrets has the secret settings of a destination without a tenant. They are stored in plain text,
// because signing needs them.
type Secrets struct {
	Secret          signature.Secret   `json:"-" yaml:"secret"`          // of X-Signature
	StandardSecrets []signature.Secret `json:"-" yaml:"standardSecrets"` // the newest first
	TLS             *webhook.PEM       `json:"-" yaml:"tls"`
}

// Secrets returns a destination with its secrets, ErrUnknown, or ErrUnreadable. With ErrUnreadable, the
// destination has its id and version.
func (d *Directory) Secrets(ctx context.Context, id string) (Destination, Secrets, error) {
	r, err := d.record(ctx, id)
	return r.Destination, r.secrets(), err
}

func (r *record) secrets() Secrets {
	s := Secrets{Secret: signature.Secret(r.Signing), TLS: r.TLS}
	for _, standard := range r.valid() {
		s.StandardSecrets = append(s.StandardSecrets, signature.Secret(standard.Key))
	}
	return s
}

// Put stores a destination without a tenant, with the id in.ID, which the caller chooses: 1 to 255
// bytes of UTF-8, but none that one of a tenant may have. It replaces the one of the version
// in.Version, or none if that is zero; otherwise it returns ErrConflict. The secrets are replaced,
// too. The error joins a *webhook.ConfigError for each fault.
func (d *Directory) Put(ctx context.Context, in Destination, s Secrets, by string) (Destination, error) {
	old, err := d.record(ctx, in.ID)
	if err != nil && !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrUnreadable) {
		return Destination{}, err
	}
	if old.Destination.Version != in.Version {
		return Destination{}, ErrConflict
	}
	in.Tenant, in.Changes = "", old.Destination.Changes
	r := recordOf(in, s)
	if err := d.check(&r, by); err != nil {
		return Destination{}, err
	}
	what := "created"
	if err == nil {
		changed := append(differences(old.Destination, in), differences(old.secrets(), s)...)
		if changed == nil {
			return in, nil
		}
		what = "changed " + strings.Join(changed, ", ")
	}
	return d.save(ctx, r, by, what)
}

// Check returns the destination that the forwarder would get, or the faults that Put would return.
func (d *Directory) Check(in Destination, s Secrets) (webhook.Destination, error) {
	r := recordOf(in, s)
	return r.destination(&Tenant{}), d.check(&r, "")
}

func recordOf(in Destination, s Secrets) record {
	r := record{Destination: in, Signing: s.Secret.Reveal(), TLS: s.TLS}
	for _, standard := range s.StandardSecrets {
		r.Secrets = append(r.Secrets, secret{Key: standard.Reveal()})
	}
	return r
}

// ownProblem says what is wrong with the id of a destination without a tenant, "" if nothing is.
func ownProblem(id string) string {
	_, _, ours := splitID(id)
	switch {
	case ours:
		return "is that of a tenant's destination"
	case id == "" || len(id) > 255 || !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl):
		return "is not 1 to 255 bytes of UTF-8 without control characters"
	case id == "." || id == "..":
		return "is no name in the path of a URL"
	}
	return ""
}
