package natsqueue

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/store"
)

func TestOpenRefusesConfig(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		for name, c := range map[string]Config{
			"Stream":      {Stream: "a.b"},
			"Replicas":    {Replicas: 6},
			"Partitions":  {Partitions: maxPartitions + 1},
			"Claim":       {Claim: time.Millisecond},
			"DedupWindow": {DedupWindow: time.Second},
			"MaxBytes":    {MaxBytes: -2},
		} {
			if q, err := Open(t.Context(), s.connect(t), c); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("Open with a bad %s = %v, %v; want an error that names it", name, q, err)
			}
		}
	})
}

// Open creates no stream with one replica because of an error that says nothing about the number of
// servers.
func TestOpenKeepsThreeReplicasWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nc := serveWithoutJetStream(t).connect(t)
		var created []int
		for subject, answer := range map[string]string{
			"$JS.API.STREAM.INFO.*":   `{"error":{"code":404,"err_code":10059}}`,
			"$JS.API.STREAM.CREATE.*": `{"error":{"code":503,"err_code":10008}}`,
		} {
			if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
				if stream := new(jetstream.StreamConfig); strings.Contains(m.Subject, "CREATE") && json.Unmarshal(m.Data, stream) == nil {
					created = append(created, stream.Replicas)
				}
				m.Respond([]byte(answer))
			}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Open(t.Context(), nc, Config{}); err == nil || !slices.Equal(created, []int{3}) {
			t.Errorf("Open without a leader of the cluster = %v, and tried to create streams with %d replicas; want an error, and one with 3", err, created)
		}
	})
}

// Open refuses a stream whose configuration would lose deliveries.
func TestOpenChecksStream(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		js, err := jetstream.New(s.connect(t))
		if err != nil {
			t.Fatal(err)
		}
		for name, spoil := range map[string]func(*jetstream.StreamConfig){
			"retention":            func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
			"discard policy":       func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld },
			"subjects":             func(c *jetstream.StreamConfig) { c.Subjects = []string{c.Name + ".*"} },
			"max_age":              func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
			"allow_direct":         func(c *jetstream.StreamConfig) { c.AllowDirect = false },
			"version":              func(c *jetstream.StreamConfig) { c.Metadata[metaVersion] = "7" },
			"allow_atomic":         func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false },
			"max_msgs":             func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 },
			"max_msg_size":         func(c *jetstream.StreamConfig) { c.MaxMsgSize = 64 << 10 },
			"max_msgs_per_subject": func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 },
		} {
			c := Config{Stream: "SPOILT-" + strings.ReplaceAll(strings.ToUpper(name), " ", "-")}
			if err := c.complete(); err != nil {
				t.Fatal(err)
			}
			stream := c.stream(1)
			spoil(&stream)
			if _, err := js.CreateStream(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(t.Context(), s.connect(t), Config{Stream: c.Stream}); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), c.Stream) {
				t.Errorf("Open of a stream with a bad %s = %v, want an error that names both", name, err)
			}
		}
	})
}

// An account may require max_bytes. Then Open creates the stream with the size MaxBytes, and says so
// if there is none. Puts leave room for other records, so deliveries can be settled when it is full.
func TestAccountThatRequiresASize(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		account, err := s.LookupAccount("$G")
		if err != nil {
			t.Fatal(err)
		}
		if err := account.UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": {
			MaxMemory: 1 << 30, MaxStore: 1 << 30, MaxStreams: -1, MaxConsumers: -1, MaxAckPending: -1, MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1, MaxBytesRequired: true,
		}}); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), s.connect(t), Config{}); err == nil || !strings.Contains(err.Error(), "set MaxBytes") {
			t.Errorf("Open without MaxBytes = %v, want an error that says to set it", err)
		}
		const size = 4 << 20
		q := ready(s.open(t, Config{MaxBytes: size, Partitions: 1}))
		if got := q.conn.stream.CachedInfo().Config.MaxBytes; got != size {
			t.Errorf("max_bytes = %d, want %d", got, size)
		}
		fillAndEmpty(t, q)
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
}

// fillAndEmpty puts deliveries until the stream is full, and settles them.
func fillAndEmpty(t *testing.T, q *Store) {
	t.Helper()
	n := 0
	for ; ; n++ {
		d := deliveries("d", n, 1)
		d[0].Body = make([]byte, 50_000)
		if _, err := q.tryPut(t.Context(), d...); errors.Is(err, store.ErrQueueFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n < 60 {
		t.Errorf("%d deliveries of 50 KB fit into 4 MB, want 60 or more", n)
	}
	until(t, "all are read", func() bool { c, err := q.Count(t.Context()); return err == nil && c.Waiting == n })
	for some := range slices.Chunk(fetch(t, q, n, "d"), 3) { // a retry stores the delivery again
		settle(t, q, store.Retry, some...)
		time.Sleep(2 * cleanEvery)
	}
	settle(t, q, store.Done, fetch(t, q, n, "d")...)
	time.Sleep(2 * cleanEvery)
	mustPut(t, q, deliveries("d", n, 1)...)
}

// Somebody has created the stream beforehand, for example with a size. Open configures it, and keeps
// its size. A stream with messages of others is left alone.
func TestOpenAdoptsAnEmptyStream(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		js, err := jetstream.New(s.connect(t))
		if err != nil {
			t.Fatal(err)
		}
		const size = 4 << 20
		made := jetstream.StreamConfig{Name: DefaultStream, Subjects: []string{"made.by.hand"}, MaxBytes: size, Metadata: map[string]string{"owner": "ops"}}
		if _, err := js.CreateStream(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		q := ready(s.open(t, Config{Partitions: 1}))
		c := q.conn.stream.CachedInfo().Config
		if c.MaxBytes != size || c.Metadata["owner"] != "ops" || c.Metadata[metaVersion] != streamVersion || !c.AllowAtomicPublish {
			t.Errorf("the stream has the configuration %+v, want that of the store with its size and metadata", c)
		}
		fillAndEmpty(t, q)
		if err := q.Close(); err != nil {
			t.Error(err)
		}

		made.Name, made.Subjects = "OTHERS", []string{"OTHERS.>"}
		if _, err := js.CreateStream(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "OTHERS.x", []byte("theirs")); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), s.connect(t), Config{Stream: "OTHERS"}); err == nil || !strings.Contains(err.Error(), "another program's") {
			t.Errorf("Open of a stream with messages of others = %v, want an error that says so", err)
		}
	})
}

// Open says at once what is missing: JetStream, or a permission of the user.
func TestOpenSaysWhatIsMissing(t *testing.T) {
	open := func(t *testing.T, nc *nats.Conn, want ...string) {
		t.Helper()
		start := time.Now()
		q, err := Open(t.Context(), nc, Config{Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			q.Close()
			t.Fatalf("Open = nil, want an error with %q", want)
		}
		for _, text := range want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("Open = %v, want an error with %q", err, text)
			}
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("Open took %v, want at most 2 s", took)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		open(t, serveWithoutJetStream(t).connect(t), "do not offer JetStream")
	})
	bubble(t, func(t *testing.T, s *testServer) {
		account, _ := s.LookupAccount("$G")
		if err := account.DisableJetStream(); err != nil {
			t.Fatal(err)
		}
		open(t, s.connect(t), "JetStream is not enabled for the account")
	})
	for subject, permissions := range map[string]*server.Permissions{
		"$JS.API.STREAM.INFO.HOOKFERRY":   {Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.INFO.>"}}},
		"$JS.API.STREAM.CREATE.HOOKFERRY": {Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.CREATE.>"}}},
		"$JS.API.CONSUMER.CREATE.":        {Publish: &server.SubjectPermission{Deny: []string{"$JS.API.CONSUMER.CREATE.>"}}},
		"HOOKFERRY.node.":                 {Publish: &server.SubjectPermission{Deny: []string{"HOOKFERRY.>"}}},
		"_INBOX.":                         {Subscribe: &server.SubjectPermission{Deny: []string{"_INBOX.>"}}},
		"HOOKFERRY_ASK.owner":             {Subscribe: &server.SubjectPermission{Deny: []string{"HOOKFERRY_ASK.owner"}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := serveUpTo(t, 0, &server.User{Username: "u", Password: "p", Permissions: permissions})
			open(t, connect(t, "", nats.InProcessServer(s), nats.UserInfo("u", "p")), "lacks a permission", `"`+subject)
		})
	}
}

// Open warns that a stream with one replica may lose accepted deliveries. It also logs that an
// existing stream keeps its number of partitions.
func TestOpenWarns(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		log := new(lines)
		c := Config{Partitions: 2, Logger: slog.New(slog.NewTextHandler(log, nil))}
		if err := s.open(t, c).Close(); err != nil {
			t.Fatal(err)
		}
		if log.count("level=WARN") != 1 || log.count("sync_interval") != 1 {
			t.Errorf("Open with one replica logged %s; want one warning that names sync_interval", &log.text)
		}
		c.Partitions = 4
		q := s.open(t, c)
		if len(q.partitions.owned) != 2 || log.count("number of partitions") != 1 {
			t.Errorf("Open of a stream with 2 partitions: got %d partitions, log %s; want 2 and a log line", len(q.partitions.owned), &log.text)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestNegativeConfig(t *testing.T) {
	testkit.Negative(t, Config{}, func(c Config) error { return c.complete() }, "MaxBytes")
}

func TestTooOld(t *testing.T) {
	for version, want := range map[string]bool{
		"1.4.1": true, "2.9.10": true, "2.10.29": true, "2.11.0": true, "2.12.0": true, "2.12.1": false, "2.12.11": false, "2.14.0-RC.1": false, "3.0.0": false, "": false, "dev": false,
	} {
		if got := tooOld(version); got != want {
			t.Errorf("tooOld(%q) = %v, want %v", version, got, want)
		}
	}
}

// A node logs one error if it cannot read a partition, for example because the server refuses
// another consumer.
func TestRefusedConsumerIsLoggedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 2}
		log := new(lines)
		c.Logger = slog.New(slog.NewTextHandler(log, nil))
		if err := c.complete(); err != nil {
			t.Fatal(err)
		}
		stream := c.stream(1)
		stream.MaxConsumers = 1
		js, err := jetstream.New(s.connect(t))
		if err == nil {
			_, err = js.CreateStream(t.Context(), stream)
		}
		if err != nil {
			t.Fatal(err)
		}
		q := s.open(t, c)
		until(t, "an error is logged", func() bool { return log.count("level=ERROR") > 0 })
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		if n := log.count("level=ERROR"); n != 1 {
			t.Errorf("got %d errors in the log, want 1", n)
		}
	})
}

// A message that another node has deleted meanwhile is no error.
func TestDeleteOfDeletedMessage(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		c := one(DefaultStream+".dead.0.d.0", []byte("?"))
		if err := q.conn.store(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		for _, want := range []bool{true, false} {
			if there, err := q.conn.delete(t.Context(), c.seq); there != want || err != nil {
				t.Errorf("delete = %v, %v; want %v", there, err, want)
			}
		}
		if there, err := q.conn.delete(t.Context(), c.seq+100); there || err != nil {
			t.Errorf("delete of a message that never was = %v, %v; want false", there, err)
		}
	})
}

// lines is a log that a test may read while others write it.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.text.Bytes(), []byte(text))
}
