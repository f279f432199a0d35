package natsqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The keys of the stream's metadata.
const (
	metaVersion    = "hookferry-version"
	metaPartitions = "hookferry-partitions"
)

// streamVersion is the version of the stream's format.
const streamVersion = "8"

// stream returns the configuration of a new stream.
func (c *Config) stream(replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: c.Stream, Subjects: []string{c.Stream + ".>"}, Description: "Deliveries of webhooks. Not to be changed by hand.",
		Storage: jetstream.FileStorage, Replicas: replicas, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
		AllowDirect: true, AllowRollup: true, AllowMsgTTL: true, AllowAtomicPublish: true,
		Metadata: map[string]string{metaVersion: streamVersion, metaPartitions: strconv.Itoa(cmp.Or(c.Partitions, DefaultPartitions))},
	}
}

// prepare creates the stream, or checks an existing one.
func (c *Config) prepare(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	want := c.stream(cmp.Or(c.Replicas, 3))
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = js.CreateStream(ctx, want)
		if refused := new(jetstream.APIError); c.Replicas == 0 && errors.As(err, &refused) && refused.Code != 503 { // there are fewer than three servers; 503: there is no leader now
			want.Replicas = 1
			s, err = js.CreateStream(ctx, want)
		}
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another node creates it too
			s, err = js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("natsqueue: stream %s: %w", want.Name, err)
	}
	have := s.CachedInfo().Config
	for _, x := range [][3]any{
		{"version", have.Metadata[metaVersion], streamVersion},
		{"storage", have.Storage, want.Storage},
		{"retention", have.Retention, want.Retention},
		{"discard policy", have.Discard, want.Discard},
		{"subjects", fmt.Sprint(have.Subjects), fmt.Sprint(want.Subjects)},
		{"allow_direct", have.AllowDirect, true},
		{"allow_rollup_hdrs", have.AllowRollup, true},
		{"allow_msg_ttl", have.AllowMsgTTL, true},
		{"allow_atomic", have.AllowAtomicPublish, true},
		{"max_age", have.MaxAge, time.Duration(0)},
		{"max_msgs_per_subject", max(have.MaxMsgsPerSubject, 0), int64(0)},
		{"deny_purge", have.DenyPurge, false},
		{"deny_delete", have.DenyDelete, false},
	} {
		if name, is, should := x[0], x[1], x[2]; is != should {
			return nil, fmt.Errorf("natsqueue: stream %s has the %s %v, not %v", want.Name, name, is, should)
		}
	}
	n, err := strconv.Atoi(have.Metadata[metaPartitions])
	if err != nil || n < 1 || n > maxPartitions {
		return nil, fmt.Errorf("natsqueue: stream %s has an impossible number of partitions in its metadata: %q", c.Stream, have.Metadata[metaPartitions])
	}
	if c.Partitions > 0 && c.Partitions != n {
		c.Logger.Warn("natsqueue: the number of partitions cannot be changed; it stays as it was", "stream", c.Stream, "partitions", n, "wanted", c.Partitions)
	}
	c.Partitions = n
	if c.Replicas > 0 && have.Replicas != c.Replicas {
		have.Replicas = c.Replicas
		if s, err = js.UpdateStream(ctx, have); err != nil {
			return nil, fmt.Errorf("natsqueue: changing stream %s: %w", want.Name, err)
		}
	}
	// A client cannot learn how often a server syncs its files.
	switch c.Replicas = have.Replicas; c.Replicas {
	case 1:
		c.Logger.Warn("natsqueue: the stream has no replicas: a power failure loses the latest deliveries unless sync_interval is always, and a broken disk loses all; use three replicas", "stream", c.Stream)
	case 2:
		c.Logger.Warn("natsqueue: the stream has two replicas, and stops when one of them fails; use three", "stream", c.Stream)
	}
	return s, nil
}

// tooOld reports whether a server is older than 2.12.1. An older server drops the stream settings
// that it does not know. A version that cannot be parsed counts as new.
func tooOld(version string) bool {
	var major, minor, patch int
	n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch)
	return n >= 2 && (major < 2 || major == 2 && (minor < 12 || minor == 12 && n == 3 && patch < 1))
}
