package natsqueue

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestOpenRefusesConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"Stream":      {Stream: "a.b"},
		"Replicas":    {Replicas: 6},
		"Partitions":  {Partitions: maxPartitions + 1},
		"Claim":       {Claim: time.Millisecond},
		"DedupWindow": {DedupWindow: time.Second},
		"MaxBytes":    {MaxBytes: -1},
	} {
		if q, err := Open(t.Context(), connect(t, shared.url()), &c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Open with a bad %s = %v, %v; want an error that names it", name, q, err)
		}
	}
}

func TestOpenRefusesNoEcho(t *testing.T) {
	nc, err := nats.Connect(shared.url(), nats.NoEcho())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if q, err := Open(t.Context(), nc, &Config{Stream: nameOf(t.TempDir())}); err == nil {
		q.Close()
		t.Error("Open takes a connection that does not hear itself")
	}
}

// A stream that is not as it has to be is refused, and what it has says more than the
// Config where that may be.
func TestOpenChecksStream(t *testing.T) {
	js, err := jetstream.New(connect(t, shared.url()))
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*jetstream.StreamConfig){
		"retention": func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		"discards":  func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld },
		"subjects":  func(c *jetstream.StreamConfig) { c.Subjects = c.Subjects[:2] },
		"max_age":   func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"direct":    func(c *jetstream.StreamConfig) { c.AllowDirect = false },
		"version":   func(c *jetstream.StreamConfig) { c.Metadata = nil },

		"duplicate_window": func(c *jetstream.StreamConfig) { c.Duplicates = time.Second },
	} {
		c := Config{Stream: "SPOILT-" + strings.ToUpper(name)}
		if err := c.complete(); err != nil {
			t.Fatal(err)
		}
		s := c.streams(1)[0]
		spoil(&s)
		if _, err := js.CreateStream(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), connect(t, shared.url()), &Config{Stream: c.Stream}); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), c.Stream) {
			t.Errorf("Open of a stream with another %s: %v", name, err)
		}
	}
	none := Config{Stream: "MISSING", NoCreate: true}
	if _, err := Open(t.Context(), connect(t, shared.url()), &none); err == nil {
		t.Error("Open with NoCreate makes a stream")
	}
}

// Open tells how what is accepted may be lost, and that partitions stay.
func TestOpenWarns(t *testing.T) {
	for _, storage := range []jetstream.StorageType{jetstream.FileStorage, jetstream.MemoryStorage} {
		var log bytes.Buffer
		c := Config{Stream: "WARNS-" + storage.String(), Storage: storage, Partitions: 2, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		if err := openWith(t, c).Close(); err != nil {
			t.Fatal(err)
		}
		want := map[jetstream.StorageType]string{
			jetstream.FileStorage: "sync_interval", jetstream.MemoryStorage: "when the server stops",
		}[storage]
		if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, want) {
			t.Errorf("with storage %v: %s", storage, text)
		}
		log.Reset()
		c.Partitions = 4
		q := openWith(t, c)
		if len(q.owned) != 2 || !strings.Contains(log.String(), "partitions") {
			t.Errorf("%d partitions, of a stream that had 2: %s", len(q.owned), &log)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTooOld(t *testing.T) {
	for version, want := range map[string]bool{
		"1.4.1": true, "2.9.10": true, "2.10.29": true, "2.11.0": false, "2.11.0-RC.1": false, "2.12.11": false, "3.0.0": false, "": false, "dev": false,
	} {
		if got := tooOld(version); got != want {
			t.Errorf("tooOld(%q) = %v, want %v", version, got, want)
		}
	}
}

// Open leaves nothing behind if its context ends when all is done but the reading of what
// waits: it is open.
func TestOpenCancelledLate(t *testing.T) {
	t.Parallel()
	c := Config{Stream: nameOf(t.TempDir()), Claim: 2 * time.Second, Partitions: 1}
	q := openWith(t, c)
	for i := range 20 {
		if _, err := q.Put(t.Context(), deliveries("d", i*1000, 1000)...); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	nc := connect(t, shared.url())
	_, err := nc.Subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED."+c.Stream+".>", func(*nats.Msg) { cancel() }) // it begins to read
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	if q, err = Open(ctx, connect(t, shared.url()), &c); err != nil {
		t.Fatalf("Open = %v", err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if ctx.Err() == nil {
		t.Error("the context has not ended")
	}
}

// A partition that cannot be read, as the server has no consumer for it, is told of, once.
func TestTooFewConsumers(t *testing.T) {
	t.Parallel()
	c := Config{Stream: nameOf(t.TempDir()), Claim: 2 * time.Second, Partitions: 2}
	log := new(lines)
	c.Logger = slog.New(slog.NewTextHandler(log, nil))
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	s := c.streams(1)[0]
	s.MaxConsumers = 1
	js, err := jetstream.New(connect(t, shared.url()))
	if err == nil {
		_, err = js.CreateStream(t.Context(), s)
	}
	if err != nil {
		t.Fatal(err)
	}
	q := openWith(t, c)
	until(t, startTime, "it is told", func() bool { return log.count("level=ERROR") > 0 })
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if n := log.count("level=ERROR"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
}

// lines is a log.
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
