package server

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

// use puts settings into effect, except for requests and attempts in progress.
func (s *server) use(next *config.Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given != nil {
		next.Keep(s.given)
		next.Restart = next.AwaitRestart(s.Settings)
	}
	s.Level.Set(next.Log.Level)
	before := s.given
	s.given = next
	s.joinLocked()
	if s.forwarder == nil { // at the start
		return
	}
	s.forwarder.Recheck("") // also for those that are deleted, which need no attempt
	s.forwarder.Recheck("", before.Changed(next)...)
}

// join puts the given settings into effect, with the routes to the destinations in the store.
func (s *server) join() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joinLocked()
}

// joinLocked is join for a caller that holds s.mu.
func (s *server) joinLocked() {
	all := s.given.With(s.tenants.Routes())
	s.settings.Store(all)
	s.sources.use(all)
}

// reload reads the settings again, uses them if they are valid, and returns a Watch of their files.
func (s *server) reload() *config.Watch {
	next, err := s.Load()
	if err != nil {
		if wrong, ok := errors.AsType[*config.Error](err); ok {
			for _, p := range wrong.Problems {
				s.Logger.Error("the new configuration is not used", "file", wrong.Path, "line", p.Line, "column", p.Column, "key", p.Key, "problem", p.Text)
			}
		} else {
			s.Logger.Error("the new configuration is not used", "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		old := *s.given
		old.Error = err.Error()
		s.given = &old
		s.joinLocked()
		return config.NewWatch(next)
	}
	s.use(next)
	if len(next.Restart) > 0 {
		s.Logger.Warn("some of the new configuration counts only after a restart", "keys", next.Restart)
	}
	s.Logger.LogAttrs(context.Background(), slog.LevelInfo, "new configuration", slog.String("file", next.Path),
		slog.Int("sources", len(next.Sources)), slog.Int("destinations", len(next.Destinations)))
	s.warnUnrouted()
	return config.NewWatch(next)
}

// warnUnrouted logs which sources have no destination.
func (s *server) warnUnrouted() {
	if names := s.settings.Load().Unrouted(); len(names) > 0 {
		s.Logger.Warn("sources have no destination: their calls are accepted, and go nowhere", "sources", names)
	}
}

// follow reloads changed settings, and sends heartbeats to the service manager, until ctx is done.
func (s *server) follow(ctx context.Context) {
	var look, beat <-chan time.Time
	var watch *config.Watch
	if s.Load != nil {
		t := time.NewTicker(config.WatchEvery)
		defer t.Stop()
		look, watch = t.C, config.NewWatch(s.Settings)
	}
	// An error means that there is no service manager that wants heartbeats.
	if within, _ := daemon.SdWatchdogEnabled(false); within > 0 {
		t := time.NewTicker(within / 2)
		defer t.Stop()
		beat = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat:
			notify(daemon.SdNotifyWatchdog)
			continue
		case <-look:
			if !watch.Changed() {
				continue
			}
		case <-s.Reload:
			if s.Load == nil {
				s.Logger.Info("there is no configuration file to read again")
				continue
			}
		}
		notify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
		watch = s.reload()
		notify(daemon.SdNotifyReady)
	}
}

// notify tells the service manager the state of the server, with systemd's protocol (sd_notify(3)).
// An error only means that there is no service manager.
func notify(state string) { _, _ = daemon.SdNotify(false, state) }
