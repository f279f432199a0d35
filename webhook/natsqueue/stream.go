package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
)

// The keys of the metadata of the stream.
const (
	metaVersion    = "hookferry-version"
	metaPartitions = "hookferry-partitions"
)

// streamVersion is that of what is in the stream.
const streamVersion = "2"

// stream returns the stream as it is to be.
func (c *Config) stream(replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: c.Stream, Subjects: []string{c.Stream + ".>"}, Description: "Deliveries of webhooks. Not to be changed by hand.",
		Storage: c.Storage, Replicas: replicas, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
		AllowDirect: true, AllowRollup: true, AllowMsgTTL: true, AllowAtomicPublish: true,
		Metadata: map[string]string{metaVersion: streamVersion, metaPartitions: strconv.Itoa(c.Partitions)},
	}
}

// prepare creates the stream if it is missing, and else checks it.
func (c *Config) prepare(ctx context.Context, js jetstream.JetStream) error {
	want := c.stream(c.Replicas)
	if c.Replicas == 0 {
		want.Replicas = 3
	}
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if c.NoCreate {
			return fmt.Errorf("natsqueue: there is no stream %s", want.Name)
		}
		s, err = js.CreateStream(ctx, want)
		var refused *jetstream.APIError
		if c.Replicas == 0 && errors.As(err, &refused) { // there are not as many servers
			want.Replicas = 1
			s, err = js.CreateStream(ctx, want)
		}
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // others make it too
			s, err = js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return fmt.Errorf("natsqueue: stream %s: %w", want.Name, err)
	}
	info := s.CachedInfo()
	have := &info.Config
	switch {
	case have.Metadata[metaVersion] != streamVersion:
		err = fmt.Errorf("has version %q, this program %q", have.Metadata[metaVersion], streamVersion)
	case have.Storage != want.Storage && c.stored:
		err = fmt.Errorf("is kept in %v, not %v", have.Storage, want.Storage)
	case have.Retention != want.Retention:
		err = fmt.Errorf("has the retention %v, not %v", have.Retention, want.Retention)
	case have.Discard != want.Discard:
		err = fmt.Errorf("discards %v, not %v", have.Discard, want.Discard)
	case !slices.Equal(have.Subjects, want.Subjects):
		err = fmt.Errorf("has the subjects %q, not %q", have.Subjects, want.Subjects)
	case !have.AllowDirect || !have.AllowRollup || !have.AllowMsgTTL || !have.AllowAtomicPublish:
		err = errors.New("is to allow direct reads, rollups, a TTL of messages and atomic batches")
	case have.MaxAge != 0:
		err = fmt.Errorf("has max_age %v: what is old would be lost", have.MaxAge)
	case have.MaxMsgsPerSubject > 0:
		err = fmt.Errorf("keeps %d messages of a subject: others would be lost", have.MaxMsgsPerSubject)
	case have.DenyPurge || have.DenyDelete:
		err = errors.New("denies purges or deletions")
	}
	if err != nil {
		return fmt.Errorf("natsqueue: stream %s %w", want.Name, err)
	}
	n, err := strconv.Atoi(have.Metadata[metaPartitions])
	if err != nil || n < 1 || n > maxPartitions {
		return fmt.Errorf("natsqueue: stream %s has %q partitions", c.Stream, have.Metadata[metaPartitions])
	}
	if c.Partitions = n; c.wanted > 0 && c.wanted != n {
		c.Logger.Warn("natsqueue: the number of partitions stays what it was", "stream", c.Stream, "partitions", n, "wanted", c.wanted)
	}
	if c.Replicas > 0 && have.Replicas != c.Replicas && !c.NoCreate {
		changed := *have
		changed.Replicas = c.Replicas
		if s, err = js.UpdateStream(ctx, changed); err != nil {
			return fmt.Errorf("natsqueue: changing stream %s: %w", want.Name, err)
		}
		info = s.CachedInfo()
	}
	c.warn(info)
	return nil
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

// tooOld reports whether a server of a version is older than 2.12.1. An older one
// forgets what it does not know of a stream's configuration. What is no version is
// taken to be new.
func tooOld(version string) bool {
	var major, minor, patch int
	n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch)
	return n >= 2 && (major < 2 || major == 2 && (minor < 12 || minor == 12 && n == 3 && patch < 1))
}
