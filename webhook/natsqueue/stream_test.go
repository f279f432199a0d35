package natsqueue

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/internal/testkit"
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
			"version":              func(c *jetstream.StreamConfig) { c.Metadata = nil },
			"allow_atomic":         func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false },
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
		if len(q.owned) != 2 || log.count("number of partitions") != 1 {
			t.Errorf("Open of a stream with 2 partitions: got %d partitions, log %s; want 2 and a log line", len(q.owned), &log.text)
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
		if err := q.store(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		for _, want := range []bool{true, false} {
			if there, err := q.delete(t.Context(), c.seq); there != want || err != nil {
				t.Errorf("delete = %v, %v; want %v", there, err, want)
			}
		}
		if there, err := q.delete(t.Context(), c.seq+100); there || err != nil {
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
