package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The keys of the metadata of the stream.
const (
	metaVersion    = "hookferry-version"
	metaPartitions = "hookferry-partitions"
)

// streamVersion is that of what is in the stream.
const streamVersion = "4"

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
func (c *Config) prepare(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	want := c.stream(c.Replicas)
	if c.Replicas == 0 {
		want.Replicas = 3
	}
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if c.NoCreate {
			return nil, fmt.Errorf("natsqueue: there is no stream %s", want.Name)
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
		return nil, fmt.Errorf("natsqueue: stream %s: %w", want.Name, err)
	}
	have := s.CachedInfo().Config
	for _, x := range []struct {
		name    string
		is      any
		want    any
		ignored bool
	}{
		{"version", have.Metadata[metaVersion], streamVersion, false},
		{"storage", have.Storage, want.Storage, !c.stored},
		{"retention", have.Retention, want.Retention, false},
		{"discard policy", have.Discard, want.Discard, false},
		{"subjects", fmt.Sprint(have.Subjects), fmt.Sprint(want.Subjects), false},
		{"allow_direct", have.AllowDirect, true, false},
		{"allow_rollup_hdrs", have.AllowRollup, true, false},
		{"allow_msg_ttl", have.AllowMsgTTL, true, false},
		{"allow_atomic", have.AllowAtomicPublish, true, false},
		{"max_age", have.MaxAge, time.Duration(0), false},
		{"max_msgs_per_subject", max(have.MaxMsgsPerSubject, 0), int64(0), false},
		{"deny_purge", have.DenyPurge, false, false},
		{"deny_delete", have.DenyDelete, false, false},
	} {
		if x.is != x.want && !x.ignored {
			return nil, fmt.Errorf("natsqueue: stream %s has the %s %v, not %v", want.Name, x.name, x.is, x.want)
		}
	}
	n, err := strconv.Atoi(have.Metadata[metaPartitions])
	if err != nil || n < 1 || n > maxPartitions {
		return nil, fmt.Errorf("natsqueue: stream %s has %q partitions", c.Stream, have.Metadata[metaPartitions])
	}
	if c.Partitions = n; c.wanted > 0 && c.wanted != n {
		c.Logger.Warn("natsqueue: the number of partitions stays what it was", "stream", c.Stream, "partitions", n, "wanted", c.wanted)
	}
	if c.Replicas > 0 && have.Replicas != c.Replicas && !c.NoCreate {
		have.Replicas = c.Replicas
		if s, err = js.UpdateStream(ctx, have); err != nil {
			return nil, fmt.Errorf("natsqueue: changing stream %s: %w", want.Name, err)
		}
	}
	c.Replicas, c.Storage = have.Replicas, have.Storage // of one that is created anew
	c.warn(s.CachedInfo())
	return s, nil
}

// warn tells how what was accepted can be lost, as far as a client can know: how often
// a server syncs its files is not among what it tells clients.
func (c *Config) warn(info *jetstream.StreamInfo) {
	have := &info.Config
	for _, x := range []struct {
		is   bool
		what string
	}{
		{have.Storage == jetstream.MemoryStorage, "the stream is in memory: what is accepted is lost when the server stops, or most of the replicas"},
		{have.Replicas == 1 && have.Storage == jetstream.FileStorage, "the stream has no replicas: what was accepted last is lost when the server's machine stops, unless its sync_interval is always, and all with its disk"},
		{have.Replicas == 2, "two replicas stop when one of them does; have three"},
	} {
		if x.is {
			c.Logger.Warn("natsqueue: "+x.what, "stream", have.Name, "replicas", have.Replicas)
		}
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
