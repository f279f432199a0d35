package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The keys of the metadata of the stream of deliveries.
const (
	metaVersion    = "hookferry-version"
	metaPartitions = "hookferry-partitions"
)

// streamVersion is that of what is in the streams.
const streamVersion = "1"

// The streams beside that of the deliveries.
func (c *Config) nodes() string { return c.Stream + "_NODES" }
func (c *Config) dead() string  { return c.Stream + "_DEAD" }
func (c *Config) state() string { return c.Stream + "_STATE" }

// streams returns the streams as they are to be.
func (c *Config) streams(replicas int) []jetstream.StreamConfig {
	base := jetstream.StreamConfig{
		Storage: c.Storage, Replicas: replicas, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
		AllowDirect: true,
	}
	main, nodes, dead, state := base, base, base, base
	main.Name, main.Subjects = c.Stream, subjects{c.Stream}.all()
	main.Description = "Deliveries of webhooks. Not to be changed by hand."
	main.Duplicates = c.DedupWindow
	main.Metadata = map[string]string{metaVersion: streamVersion, metaPartitions: strconv.Itoa(c.Partitions)}
	nodes.Name, nodes.Subjects = c.nodes(), []string{c.nodes() + ".*"}
	nodes.Description = "The processes that share " + c.Stream + "."
	// Whether a process lives is asked of the leader.
	nodes.AllowDirect, nodes.MaxMsgsPerSubject, nodes.Discard = false, 1, jetstream.DiscardOld
	nodes.MaxAge = max(24*c.Claim, time.Hour)
	dead.Name, dead.Subjects = c.dead(), []string{c.dead() + ".*.*"}
	dead.Description = "Dead letters of " + c.Stream + "."
	dead.Duplicates = c.DedupWindow
	state.Name, state.Subjects = c.state(), []string{c.state() + ".*.*", c.state() + ".*.*.*"}
	state.Description = "Audiences and pauses of " + c.Stream + "."
	state.MaxMsgsPerSubject, state.Discard = 1, jetstream.DiscardOld
	return []jetstream.StreamConfig{main, nodes, dead, state}
}

// prepare creates the streams that are missing, and checks those that are there.
func (c *Config) prepare(ctx context.Context, js jetstream.JetStream) error {
	replicas := c.Replicas
	if replicas == 0 {
		replicas = 3
	}
	for i := range c.streams(replicas) {
		info, err := c.stream(ctx, js, i, &replicas)
		if err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		if v := info.Config.Metadata[metaVersion]; v != streamVersion {
			return fmt.Errorf("natsqueue: stream %s has version %q, this program %q", c.Stream, v, streamVersion)
		}
		n, err := strconv.Atoi(info.Config.Metadata[metaPartitions])
		if err != nil || n < 1 || n > maxPartitions {
			return fmt.Errorf("natsqueue: stream %s has %q partitions", c.Stream, info.Config.Metadata[metaPartitions])
		}
		if c.Partitions = n; c.wanted > 0 && c.wanted != n {
			c.Logger.Warn("natsqueue: the number of partitions stays what it was", "stream", c.Stream, "partitions", n, "wanted", c.wanted)
		}
		c.warn(info)
	}
	return nil
}

// stream creates the stream i, or checks it.
func (c *Config) stream(ctx context.Context, js jetstream.JetStream, i int, replicas *int) (*jetstream.StreamInfo, error) {
	want := c.streams(*replicas)[i]
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if c.NoCreate {
			return nil, fmt.Errorf("natsqueue: there is no stream %s", want.Name)
		}
		s, err = js.CreateStream(ctx, want)
		var refused *jetstream.APIError
		if c.Replicas == 0 && *replicas > 1 && errors.As(err, &refused) {
			// There are not as many servers.
			*replicas, want.Replicas = 1, 1
			s, err = js.CreateStream(ctx, want)
		}
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // others make it too
			s, err = js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("natsqueue: stream %s: %w", want.Name, err)
	}
	info := s.CachedInfo()
	have := &info.Config
	switch {
	case have.Storage != want.Storage && c.stored:
		err = fmt.Errorf("is kept in %v, not %v", have.Storage, want.Storage)
	case have.Retention != want.Retention:
		err = fmt.Errorf("has the retention %v, not %v", have.Retention, want.Retention)
	case have.Discard != want.Discard:
		err = fmt.Errorf("discards %v, not %v", have.Discard, want.Discard)
	case !slices.Equal(have.Subjects, want.Subjects):
		err = fmt.Errorf("has the subjects %q, not %q", have.Subjects, want.Subjects)
	case have.AllowDirect != want.AllowDirect:
		err = fmt.Errorf("has allow_direct %v, not %v", have.AllowDirect, want.AllowDirect)
	case have.MaxAge != want.MaxAge && i != 1:
		err = fmt.Errorf("has max_age %v: what is old would be lost", have.MaxAge)
	case have.MaxMsgsPerSubject != want.MaxMsgsPerSubject && max(have.MaxMsgsPerSubject, want.MaxMsgsPerSubject) > 0:
		err = fmt.Errorf("keeps %d messages of a subject, not %d", have.MaxMsgsPerSubject, want.MaxMsgsPerSubject)
	case have.Duplicates < min(minDedup, want.Duplicates) && (!c.dedup || c.NoCreate):
		err = fmt.Errorf("has a duplicate_window of %v: what is sent again would be stored twice", have.Duplicates)
	case have.DenyPurge || have.DenyDelete:
		err = errors.New("denies purges or deletions")
	}
	if err != nil {
		return nil, fmt.Errorf("natsqueue: stream %s %w", want.Name, err)
	}
	changed := *have
	if c.Replicas > 0 {
		changed.Replicas = c.Replicas
	}
	if c.dedup && want.Duplicates > 0 {
		changed.Duplicates = want.Duplicates
	}
	if !c.NoCreate && (changed.Replicas != have.Replicas || changed.Duplicates != have.Duplicates) {
		if s, err = js.UpdateStream(ctx, changed); err != nil {
			return nil, fmt.Errorf("natsqueue: changing stream %s: %w", want.Name, err)
		}
		info = s.CachedInfo()
	}
	return info, nil
}

// warn tells how what was accepted can be lost, as far as a client can know: how often
// a server syncs its files is not among what it tells clients.
func (c *Config) warn(info *jetstream.StreamInfo) {
	have := &info.Config
	switch {
	case have.Storage == jetstream.MemoryStorage && have.Replicas == 1:
		c.Logger.Warn("natsqueue: what is accepted is lost when the server stops: the stream is in memory, without replicas", "stream", have.Name)
	case have.Storage == jetstream.MemoryStorage:
		c.Logger.Warn("natsqueue: what is accepted is lost when most servers stop: the stream is in memory", "stream", have.Name, "replicas", have.Replicas)
	case have.Replicas == 1:
		c.Logger.Warn("natsqueue: what was accepted last is lost when the server's machine stops, unless its sync_interval is always, and all with its disk: the stream has no replicas",
			"stream", have.Name)
	case have.Replicas == 2:
		c.Logger.Warn("natsqueue: two replicas stop when one of them does; have three", "stream", have.Name)
	}
}

// tooOld reports whether a server of a version is older than 2.11. An older one
// forgets what it does not know of a stream's configuration. What is no version is
// taken to be new.
func tooOld(version string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return n == 2 && (major < 2 || major == 2 && minor < 11)
}
