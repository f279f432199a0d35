// Package stored keeps the destinations that are made, changed and deleted while servers run. Each is a
// setting of the store, which all servers of the store share.
//
// A change writes two settings: the destination, and a short list of the latest changes. Every server
// reads that list each second, and then only the destinations on it. So a change counts on all servers
// within two seconds, whatever the number of destinations. A server that dies between the two writes
// leaves its change out of the list, so all destinations are read again each Reread.
package stored

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/webhook"
)

const (
	// Every is how often the list of changes is read.
	Every = time.Second
	// Reread is how often all destinations are read.
	Reread = 5 * time.Minute

	prefix   = "destination/" // with an id: the name of the setting of a destination
	listName = "destinations" // of the setting that lists the latest changes
	listed   = 100            // changes
)

// Errors of Change.
var (
	// ErrConflict says that the destination does not have the version that was to be changed.
	ErrConflict = errors.New("the destination was changed meanwhile")
	// ErrTooLarge says that a document has more bytes than a setting of the store may have.
	ErrTooLarge = fmt.Errorf("the destination has too many bytes: %d are allowed", webhook.MaxSetting)
)

// Config is what Destinations work with.
type Config struct {
	Store webhook.Store
	// Allow are the addresses beside public ones that the URLs of destinations may have.
	Allow []netip.Prefix
	// Changed is called with all destinations, sorted by id, after one of them has changed. One
	// goroutine at a time calls it. It does not modify them. A destination that did not change
	// has the same pointer as before.
	Changed func([]*config.Destination)
	Logger  *slog.Logger
}

// Destinations are the destinations of a store. They are safe for concurrent use.
type Destinations struct {
	config Config

	mu   sync.Mutex // held while the store is asked, so that no older version replaces a newer one
	all  map[string]*config.Destination
	seen uint64 // how many changes are in all; see changes.Count
}

// A Document is a destination as it is stored.
type Document struct {
	// Destination has the keys of config.ParseDestination.
	Destination map[string]any `json:"destination"`
	Changed     time.Time      `json:"changed"`
	By          string         `json:"by"`
}

// changes is the value of the setting that lists the latest changes.
type changes struct {
	Count uint64   `json:"count"` // of all changes ever
	IDs   []string `json:"ids"`   // of the latest, oldest first
}

// Open reads the destinations of a store, and calls c.Changed with them.
func Open(ctx context.Context, c Config) (*Destinations, error) {
	s := &Destinations{config: c, all: make(map[string]*config.Destination)}
	return s, s.learn(ctx, true)
}

// Follow learns what other servers change, until ctx is done. While the store fails, the destinations
// stay as they are.
func (s *Destinations) Follow(ctx context.Context) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	latest, failing := time.Now(), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		everything := time.Since(latest) >= Reread
		err := s.learn(ctx, everything)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && everything:
			latest = time.Now()
		case err != nil && !failing:
			s.config.Logger.Error("could not read changes of destinations from the store; they stay as they are until it can be read", "error", err)
		}
		failing = err != nil
	}
}

// learn reads what has changed, or everything.
func (s *Destinations) learn(ctx context.Context, everything bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, _, err := s.list(ctx)
	if err != nil {
		return err
	}
	missed := list.Count - s.seen
	switch {
	case everything, missed > uint64(len(list.IDs)):
		err = s.readAll(ctx)
	case missed == 0:
		return nil
	default:
		ids := slices.Sorted(slices.Values(list.IDs[len(list.IDs)-int(missed):]))
		for _, id := range slices.Compact(ids) {
			var setting webhook.Setting
			if setting, err = s.get(ctx, prefix+id); err != nil {
				break
			}
			s.put(id, setting)
		}
	}
	if err == nil {
		s.seen = list.Count
		s.tell()
	}
	return err
}

// readAll reads every destination.
func (s *Destinations) readAll(ctx context.Context) error {
	there := make(map[string]bool)
	for setting, err := range s.config.Store.Settings(ctx, prefix) {
		if err != nil {
			return err
		}
		id := strings.TrimPrefix(setting.Name, prefix)
		there[id] = true
		s.put(id, setting)
	}
	maps.DeleteFunc(s.all, func(id string, _ *config.Destination) bool { return !there[id] })
	return nil
}

// put keeps a destination as a setting says. A setting without a version means that it was deleted. A
// document that is not valid keeps its sources, if these are readable, so that their calls wait for it.
func (s *Destinations) put(id string, setting webhook.Setting) {
	if setting.Version == 0 {
		delete(s.all, id)
		return
	}
	if old := s.all[id]; old != nil && old.Stored.Version == setting.Version {
		return
	}
	d, err := s.parse(id, setting.Value)
	if err != nil {
		s.config.Logger.Error("a stored destination is not valid; its deliveries wait until it is changed", "destination", id, "error", err)
	}
	d.Stored.Version = setting.Version
	s.all[id] = d
}

// parse reads the value of a setting. With an error, the destination has what could be read, and no
// Webhook.
func (s *Destinations) parse(id string, value []byte) (*config.Destination, error) {
	d := &config.Destination{ID: id, Stored: new(config.Stored)}
	var stored Document
	if json.Unmarshal(value, &stored) != nil || stored.Destination == nil {
		return d, errors.New("its document is not JSON")
	}
	stored.Destination["id"] = id
	whole, err := config.ParseDestination(stored.Destination, s.config.Allow)
	if err == nil {
		d = whole
	} else if list, ok := stored.Destination["sources"].([]any); ok {
		for _, name := range list {
			if name, ok := name.(string); ok {
				d.Stored.Sources = append(d.Stored.Sources, name)
			}
		}
	}
	d.Stored.Changed, d.Stored.By = stored.Changed, stored.By
	return d, err
}

func (s *Destinations) tell() {
	all := slices.Collect(maps.Values(s.all))
	slices.SortFunc(all, func(a, b *config.Destination) int { return strings.Compare(a.ID, b.ID) })
	s.config.Changed(all)
}

// get returns a setting. Its version is zero if there is none.
func (s *Destinations) get(ctx context.Context, name string) (webhook.Setting, error) {
	for setting, err := range s.config.Store.Settings(ctx, name) {
		if err != nil {
			return webhook.Setting{}, err
		}
		if setting.Name == name {
			return setting, nil
		}
		break // the others have longer names
	}
	return webhook.Setting{Name: name}, nil
}

// list returns the latest changes, and the setting that has them.
func (s *Destinations) list(ctx context.Context) (list changes, setting webhook.Setting, err error) {
	if setting, err = s.get(ctx, listName); err == nil && setting.Version != 0 {
		if err = json.Unmarshal(setting.Value, &list); err != nil {
			err = fmt.Errorf("the setting %q is not valid: %w", listName, err)
		}
	}
	return list, setting, err
}

// Change replaces the document of a destination by what edit makes of it, and notes who did it. The
// document is nil for a destination that does not exist; edit returns nil to delete it. It is called
// again if another server changes the destination meanwhile. If version is not nil and the destination
// has another one, zero if it does not exist, the error is ErrConflict. A *config.Error says that the
// new document is not valid. After an error of the store the change was made, or not.
func (s *Destinations) Change(ctx context.Context, id, by string, version *uint64, edit func(document map[string]any) (map[string]any, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		setting, err := s.get(ctx, prefix+id)
		if err != nil {
			return err
		}
		if version != nil && *version != setting.Version {
			return ErrConflict
		}
		var stored Document
		if setting.Version != 0 && (json.Unmarshal(setting.Value, &stored) != nil || stored.Destination == nil) {
			stored.Destination = map[string]any{} // it is not readable, and can only be replaced
		}
		document, err := edit(stored.Destination)
		if err != nil {
			return err
		}
		setting.Value = nil
		if document != nil {
			if setting.Value, err = json.Marshal(Document{document, time.Now().UTC(), by}); err != nil {
				return err
			}
			if len(setting.Value) > webhook.MaxSetting {
				return ErrTooLarge
			}
			if _, err := s.parse(id, setting.Value); err != nil {
				return err
			}
		}
		setting.Version, err = s.config.Store.Set(ctx, setting)
		if errors.Is(err, webhook.ErrConflict) {
			continue
		} else if err != nil {
			return err
		}
		if document == nil {
			setting.Version = 0
		}
		s.put(id, setting)
		s.tell()
		return s.announce(ctx, id)
	}
}

// announce adds a change to the list of the latest.
func (s *Destinations) announce(ctx context.Context, id string) error {
	for {
		list, setting, err := s.list(ctx)
		if err != nil {
			return err
		}
		list.Count++
		list.IDs = append(list.IDs, id)
		list.IDs = list.IDs[max(len(list.IDs)-listed, 0):]
		if setting.Value, err = json.Marshal(list); err != nil {
			return err
		}
		_, err = s.config.Store.Set(ctx, setting)
		if err == nil && list.Count == s.seen+1 { // nothing of others came between
			s.seen++
		}
		if !errors.Is(err, webhook.ErrConflict) {
			return err
		}
	}
}
