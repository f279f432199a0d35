// Package stored keeps the destinations that the admin API creates, changes and deletes while
// servers run. Each destination is a setting of the store, which all servers of the store share.
//
// A change writes two settings: the destination, and a list of the most recent changes. Every server
// reads the list each second, and then the destinations in it. So a change reaches all servers within
// two seconds, no matter how many destinations there are. If a server dies between the two writes,
// the list lacks its change. Therefore all servers read all destinations again every Reread.
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
	"github.com/hookferry/analytics/webhook/store"
)

const (
	Every  = time.Second     // between two reads of the list of changes
	Reread = 5 * time.Minute // between two reads of all destinations

	prefix   = "destination/" // the setting of a destination is named by this prefix and the id
	listName = "destinations" // the name of the setting that lists the most recent changes
	listed   = 100            // how many changes the list keeps

	changeTime = 10 * time.Second // the time limit of the reads and writes of a change
)

// Errors of Change.
var (
	// ErrConflict says that the destination does not have the expected version.
	ErrConflict = errors.New("the destination was changed meanwhile")
	// ErrTooLarge says that a document is larger than a setting of the store may be.
	ErrTooLarge = fmt.Errorf("the destination has too many bytes: %d are allowed", store.MaxSetting)
)

// Config has the parts of the server that Destinations use.
type Config struct {
	Store webhook.Store
	Allow []netip.Prefix // non-public addresses that the URLs of destinations may contain
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
	seen uint64 // how many changes the field all includes; see changes.Count
}

// A Document is a destination in the form that the store keeps.
type Document struct {
	// Destination has the keys that config.ParseDestination reads.
	Destination map[string]any `json:"destination"`
	Changed     time.Time      `json:"changed"`
	By          string         `json:"by"`
}

// changes lists the most recent changes of destinations. The list is stored as the value of a setting.
type changes struct {
	Count uint64   `json:"count"` // the number of all changes ever made
	IDs   []string `json:"ids"`   // the ids of the most recent changes, oldest first
}

// Open reads the destinations of a store, and calls c.Changed with them.
func Open(ctx context.Context, c Config) (*Destinations, error) {
	s := &Destinations{config: c, all: make(map[string]*config.Destination)}
	return s, s.learn(ctx, true)
}

// Follow reads other servers' changes until ctx is done. While the store fails, nothing changes.
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
			s.config.Logger.Error("could not read changes of destinations from the store; until it can read them, this server uses the destinations that it knows", "error", err)
		}
		failing = err != nil
	}
}

// learn reads the destinations that have changed, or all destinations if everything is true.
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
			var setting store.Setting
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

// put adds, replaces or removes a destination by its setting; version zero means that it was deleted.
// If the document is invalid but its list of sources is readable, the destination has these sources,
// so that their calls wait for it.
func (s *Destinations) put(id string, setting store.Setting) {
	if setting.Version == 0 {
		delete(s.all, id)
		return
	}
	if old := s.all[id]; old != nil && old.Stored.Version == setting.Version {
		return
	}
	d, err := s.parse(id, setting.Value)
	if err != nil {
		s.config.Logger.Error("a destination in the store is not valid; its deliveries wait until somebody corrects it", "destination", id, "error", err)
	}
	d.Stored.Version = setting.Version
	s.all[id] = d
}

// parse decodes a setting. With an error, the destination has no Webhook, but the sources that could
// be read.
func (s *Destinations) parse(id string, value []byte) (*config.Destination, error) {
	var stored Document
	if json.Unmarshal(value, &stored) != nil || stored.Destination == nil {
		return &config.Destination{ID: id, Stored: new(config.Stored)}, errors.New("its document is not JSON")
	}
	stored.Destination["id"] = id
	d, err := config.ParseDestination(stored.Destination, s.config.Allow)
	d.ID, d.Stored.Changed, d.Stored.By = id, stored.Changed, stored.By
	return d, err
}

func (s *Destinations) tell() {
	all := slices.Collect(maps.Values(s.all))
	slices.SortFunc(all, func(a, b *config.Destination) int { return strings.Compare(a.ID, b.ID) })
	s.config.Changed(all)
}

// get returns a setting. Its version is zero if the setting does not exist.
func (s *Destinations) get(ctx context.Context, name string) (store.Setting, error) {
	for setting, err := range s.config.Store.Settings(ctx, name) {
		if err != nil {
			return store.Setting{}, err
		}
		if setting.Name == name {
			return setting, nil
		}
		break // names that begin with name come after name itself
	}
	return store.Setting{Name: name}, nil
}

// list returns the list of changes as it is stored now, and the setting that contains it.
func (s *Destinations) list(ctx context.Context) (list changes, setting store.Setting, err error) {
	if setting, err = s.get(ctx, listName); err == nil && setting.Version != 0 {
		if err = json.Unmarshal(setting.Value, &list); err != nil {
			err = fmt.Errorf("the setting %q is not valid: %w", listName, err)
		}
	}
	return list, setting, err
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
// between the two writes would leave the change unlisted.
func (s *Destinations) Change(ctx context.Context, id, by string, version *uint64, edit func(document map[string]any) (map[string]any, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTime)
	defer cancel()
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
			// The document is not readable, so it can only be replaced.
			stored.Destination = map[string]any{}
		}
		document, err := edit(stored.Destination)
		if err != nil {
			return err
		}
		setting.Value = nil
		if document != nil {
			setting.Value, _ = json.Marshal(Document{document, time.Now().UTC(), by}) // it came from JSON
			if len(setting.Value) > store.MaxSetting {
				return ErrTooLarge
			}
			if _, err := s.parse(id, setting.Value); err != nil {
				return err
			}
		}
		setting.Version, err = s.config.Store.Set(ctx, setting)
		if errors.Is(err, store.ErrConflict) {
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

func (s *Destinations) announce(ctx context.Context, id string) error {
	for {
		list, setting, err := s.list(ctx)
		if err != nil {
			return err
		}
		list.Count++
		list.IDs = append(list.IDs, id)
		list.IDs = list.IDs[max(len(list.IDs)-listed, 0):]
		setting.Value, _ = json.Marshal(list)
		_, err = s.config.Store.Set(ctx, setting)
		if err == nil && list.Count == s.seen+1 { // no change of another server came in between
			s.seen++
		}
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}
