// Package stored keeps the destinations that the admin API creates, changes and deletes while
// servers run. Each destination is a document of the store, which all servers of the store share.
// Every server asks each second which documents have changed, and reads those of destinations. So a
// change reaches all servers within two seconds, no matter how many destinations there are.
package stored

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

const (
	Every  = time.Second   // between two questions of what has changed
	folder = "destination" // has the document of each destination, under its id

	changeTime = 10 * time.Second // the time limit of the reads and writes of a change
)

// Errors of Change.
var (
	// ErrConflict says that the destination does not have the expected version.
	ErrConflict = errors.New("the destination was changed meanwhile")
	// ErrTooLarge says that a document is larger than one of the store may be.
	ErrTooLarge = fmt.Errorf("the destination has too many bytes: %d are allowed", store.MaxDocument)
)

// Config has the parts of the server that Destinations use.
type Config struct {
	Store    webhook.Store
	Webhooks *config.Webhooks // see config.ParseDestination
	// Changed gets all destinations, sorted by id, after one has changed; an unchanged one keeps its
	// pointer. It must not modify them. Only one goroutine at a time calls it.
	Changed func([]*config.Destination)
	Logger  *slog.Logger
}

// Destinations has the destinations that are kept in a store. It is safe for concurrent use.
type Destinations struct {
	config Config

	// mu is held during each call of the store, so that an older version never replaces a newer one.
	mu   sync.Mutex
	all  map[string]*config.Destination
	seen uint64 // the version of the documents up to which the field all is right
}

// A Document is a destination in the form that the store keeps.
type Document struct {
	// Destination has the keys that config.ParseDestination reads.
	Destination map[string]any `json:"destination"`
	Changed     time.Time      `json:"changed"`
	By          string         `json:"by"`
}

// Open reads the destinations of a store, and calls c.Changed with them.
func Open(ctx context.Context, c Config) (*Destinations, error) {
	s := &Destinations{config: c, all: make(map[string]*config.Destination)}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s, s.readAll(ctx)
}

// Follow reads other servers' changes until ctx is done. While the store fails, nothing changes.
func (s *Destinations) Follow(ctx context.Context) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.learn(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			s.config.Logger.Error("could not read changes of destinations from the store; until it can read them, this server uses the destinations that it knows", "error", err)
		}
		failing = err != nil
	}
}

// learn reads the destinations that have changed.
func (s *Destinations) learn(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for {
		some, upTo, err := s.config.Store.Changes(ctx, s.seen)
		switch {
		case errors.Is(err, store.ErrTooOld):
			return s.readAll(ctx)
		case err != nil:
			return err
		case len(some) == 0:
			if s.seen = upTo; changed {
				s.tell()
			}
			return nil
		}
		for _, c := range some {
			if c.Folder != folder {
				continue
			}
			d, err := s.config.Store.Document(ctx, folder, c.Name)
			if err != nil {
				return err
			}
			changed = s.put(d) || changed
		}
		s.seen = upTo
	}
}

// readAll reads all destinations. The caller holds s.mu.
func (s *Destinations) readAll(ctx context.Context) error {
	_, upTo, err := s.config.Store.Changes(ctx, store.Latest)
	if err != nil {
		return err
	}
	there := make(map[string]bool)
	for d, err := range s.config.Store.Documents(ctx, folder, "") {
		if err != nil {
			return err
		}
		there[d.Name] = true
		s.put(d)
	}
	maps.DeleteFunc(s.all, func(id string, _ *config.Destination) bool { return !there[id] })
	s.seen = upTo
	s.tell()
	return nil
}

// put adds, replaces or removes a destination by its document; version zero means that it was
// deleted. It reports whether that changes anything. If the document is invalid but its list of
// sources is readable, the destination has these sources, so that their calls wait for it.
func (s *Destinations) put(held store.Document) (changed bool) {
	id, old := held.Name, s.all[held.Name]
	if held.Version == 0 {
		delete(s.all, id)
		return old != nil
	}
	if old != nil && old.Stored.Version == held.Version {
		return false
	}
	d, err := s.parse(id, held.Value)
	if err != nil {
		s.config.Logger.Error("a destination in the store is not valid; its deliveries wait until somebody corrects it", "destination", id, "error", err)
	}
	d.Stored.Version = held.Version
	s.all[id] = d
	return true
}

// parse decodes a document. With an error, the destination has no Webhook, but the sources that could
// be read.
func (s *Destinations) parse(id string, value []byte) (*config.Destination, error) {
	var stored Document
	if json.Unmarshal(value, &stored) != nil || stored.Destination == nil {
		return &config.Destination{ID: id, Stored: new(config.Stored)}, errors.New("its document is not JSON")
	}
	stored.Destination["id"] = id
	d, err := config.ParseDestination(stored.Destination, s.config.Webhooks)
	d.ID, d.Stored.Changed, d.Stored.By = id, stored.Changed, stored.By
	return d, err
}

func (s *Destinations) tell() {
	all := slices.Collect(maps.Values(s.all))
	slices.SortFunc(all, func(a, b *config.Destination) int { return strings.Compare(a.ID, b.ID) })
	s.config.Changed(all)
}

// Change passes the document of a destination to the function edit, and stores the result with the
// argument by as its author. edit gets nil if the destination does not exist, and returns nil to
// delete it. If another server has changed the destination meanwhile, Change calls edit again.
//
// If version is not nil, and the destination has another version, Change returns ErrConflict; zero is
// the version of one that does not exist. A *config.Error says that the new document is invalid.
// After an error of the store it is unknown whether the change was made.
//
// The end of ctx does not interrupt Change, which takes at most changeTime: a client that disconnects
// need not wonder whether its change was made.
func (s *Destinations) Change(ctx context.Context, id, by string, version *uint64, edit func(document map[string]any) (map[string]any, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTime)
	defer cancel()
	for {
		held, err := s.config.Store.Document(ctx, folder, id)
		if err != nil {
			return err
		}
		if version != nil && *version != held.Version {
			return ErrConflict
		}
		var stored Document
		if held.Version != 0 && (json.Unmarshal(held.Value, &stored) != nil || stored.Destination == nil) {
			// The document is not readable, so it can only be replaced.
			stored.Destination = map[string]any{}
		}
		document, err := edit(stored.Destination)
		if err != nil {
			return err
		}
		held.Value = nil
		if document != nil {
			held.Value, _ = json.Marshal(Document{document, time.Now().UTC(), by}) // it came from JSON
			if len(held.Value) > store.MaxDocument {
				return ErrTooLarge
			}
			if _, err := s.parse(id, held.Value); err != nil {
				return err
			}
		}
		held.Version, err = s.config.Store.SetDocument(ctx, held)
		if errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return err
		}
		if document == nil {
			held.Version = 0
		}
		s.put(held)
		s.tell()
		return nil
	}
}
