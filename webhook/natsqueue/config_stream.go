package natsqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The keys of the stream's metadata.
const (
	metaVersion    = "hookferry-version"
	metaPartitions = "hookferry-partitions"
)

// streamVersion is the version of the stream's format.
const streamVersion = "9"

// stream returns the configuration of a new stream.
func (c *Config) stream(replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: c.Stream, Subjects: []string{c.Stream + ".>"}, Description: "Deliveries of webhooks. Not to be changed by hand.",
		Storage: jetstream.FileStorage, Replicas: replicas, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
		AllowDirect: true, AllowRollup: true, AllowMsgTTL: true, AllowAtomicPublish: true, MaxBytes: c.size,
		Metadata: map[string]string{metaVersion: streamVersion, metaPartitions: strconv.Itoa(cmp.Or(c.Partitions, DefaultPartitions))},
	}
}

// Error codes of the server that the jetstream package has no names for.
const codeSizeRequired = 10113 // the account requires max_bytes

// create creates the stream. It sets max_bytes only if the account requires that.
func (c *Config) create(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	want := c.stream(cmp.Or(c.Replicas, 3))
	for {
		s, err := js.CreateStream(ctx, want)
		refused, ok := errors.AsType[*jetstream.APIError](err)
		switch {
		case ok && refused.ErrorCode == codeSizeRequired && c.MaxBytes == 0:
			return nil, fmt.Errorf("the account requires streams of a bounded size: set MaxBytes: %w", err)
		case ok && refused.ErrorCode == codeSizeRequired && want.MaxBytes == 0:
			want.MaxBytes = c.MaxBytes
		case ok && refused.Code != 503 && c.Replicas == 0 && want.Replicas > 1: // there are fewer than three servers; 503: there is no leader now
			want.Replicas = 1
		case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse): // another node creates it too
			return js.Stream(ctx, want.Name)
		default:
			return s, err
		}
	}
}

// adopt configures a stream that somebody has created for this store beforehand, and that has no
// messages yet. It keeps the size, the place and the replicas of the stream.
func (c *Config) adopt(ctx context.Context, js jetstream.JetStream, have jetstream.StreamConfig) (jetstream.Stream, error) {
	want := c.stream(have.Replicas)
	have.Subjects, have.Discard = want.Subjects, want.Discard
	have.AllowDirect, have.AllowRollup, have.AllowMsgTTL, have.AllowAtomicPublish = true, true, true, true
	have.Metadata = maps.Clone(have.Metadata)
	if have.Metadata == nil {
		have.Metadata = make(map[string]string)
	}
	maps.Copy(have.Metadata, want.Metadata)
	s, err := js.UpdateStream(ctx, have)
	if err != nil {
		return nil, fmt.Errorf("configuring the stream, which was created for this store: %w", err)
	}
	return s, nil
}

// explain says what is missing if the server does not offer JetStream.
func explain(err error) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		return fmt.Errorf("the servers do not offer JetStream to this user; enable it in their configuration: %w", err)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("JetStream is not enabled for the account of this user: %w", err)
	}
	return err
}

// A permit notices that the user of a connection lacks a permission. The server does not answer a
// forbidden request. It reports an error to the connection instead, which otherwise nobody waits for.
type permit struct {
	nc     *nats.Conn
	stream string
	before error // the error of the connection before
}

// denied returns the error for a missing permission that the store needs, or nil.
func (p *permit) denied() error {
	err := p.nc.LastError()
	if err == p.before || !errors.Is(err, nats.ErrPermissionViolation) {
		return nil
	}
	for _, prefix := range []string{"$JS.", p.stream + ".", p.stream + "_ASK.", cmp.Or(p.nc.Opts.InboxPrefix, "_INBOX") + "."} {
		if strings.Contains(err.Error(), `"`+prefix) {
			return fmt.Errorf("natsqueue: the user lacks a permission; see the package comment for those that the store needs: %w", err)
		}
	}
	return nil // the program uses the connection for something else, too
}

// watch calls f with a context that ends once a missing permission is noticed. Then it returns the
// error for that.
func (p *permit) watch(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for sleep(ctx, behind) == nil {
			if p.denied() != nil {
				cancel()
			}
		}
	})
	err := f(ctx)
	cancel()
	watching.Wait()
	return cmp.Or(p.denied(), err)
}

// prepare creates the stream, or checks an existing one.
func (c *Config) prepare(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	want := c.stream(cmp.Or(c.Replicas, 3))
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = c.create(ctx, js)
	}
	if err == nil && s.CachedInfo().Config.Metadata[metaVersion] == "" && s.CachedInfo().State.Msgs == 0 {
		s, err = c.adopt(ctx, js, s.CachedInfo().Config)
	}
	if err != nil {
		return nil, fmt.Errorf("natsqueue: stream %s: %w", want.Name, explain(err))
	}
	have := s.CachedInfo().Config
	if have.Metadata[metaVersion] == "" {
		return nil, fmt.Errorf("natsqueue: stream %s has messages, but no version of this store in its metadata: it is another program's; choose another name", want.Name)
	}
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
		{"max_msgs", max(have.MaxMsgs, 0), int64(0)},
		{"max_msg_size", max(have.MaxMsgSize, 0), int32(0)},
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
	// A stream with max_bytes refuses everything at its bound, also the records that let deliveries go
	// on. So puts leave a part of it free.
	if c.size = max(have.MaxBytes, 0); c.size > 0 {
		c.MaxBytes = min(cmp.Or(c.MaxBytes, c.size), c.size-c.size/16)
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
