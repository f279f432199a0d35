package filequeue_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// The test flips one bit anywhere in a closed store. Then only the delivery with that bit may be
// missing, and the log has an error about it.
func TestBitFlip(t *testing.T) {
	for seed := range soakenv.Seeds(t, 80) {
		synctest.Test(t, func(t *testing.T) { testBitFlip(t, seed) })
	}
}

func testBitFlip(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 4))
	d := smallDisk(seed)
	l := newLedger(t, rnd)
	l.keeps = seed%2 == 0
	defer l.close()
	if err := l.open(d, filequeue.Config{}); err != nil {
		t.Fatal(err)
	}
	l.s.KeepInTables(3000)
	l.body = 2000
	for range 60 {
		l.step()
	}
	want := l.states()
	if err := l.s.Close(); err != nil {
		t.Fatal(err)
	}
	names := d.Names()
	name := names[rnd.IntN(len(names))]
	b := d.ReadFile(name)
	if len(b) == 0 || name == "reserve" {
		return
	}
	at := rnd.IntN(len(b))
	b[at] ^= 1 << rnd.IntN(8)
	d.WriteFile(name, b)
	if rnd.IntN(2) == 0 { // without hints, Open reads the segments
		for _, n := range names {
			if strings.HasSuffix(n, ".log") {
				d.WriteFile(n, append(d.ReadFile(n), 0)) // a byte behind a hint makes it invalid
			}
		}
	}
	var log bytes.Buffer
	c := filequeue.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	if l.keeps {
		c.HistoryAge = store.Unlimited
	}
	s, err := filequeue.OpenOn(d, c)
	if err != nil {
		if !errors.Is(err, filequeue.ErrDamaged) && !errors.Is(err, filequeue.ErrVersion) {
			t.Fatalf("a bit of %s at %d: Open = %v, want nil, ErrDamaged or ErrVersion", name, at, err)
		}
		return
	}
	l.s = s
	got := l.states() // sets aside dead letters
	for i := range 3 {
		time.Sleep(time.Hour)
		for _, retries := range []bool{false, true} {
			if _, err := s.Fetch(t.Context(), []store.Want{{Destination: fmt.Sprint("d", i), Max: 10_000, Retries: retries}}, 1<<40, nil); err != nil {
				t.Fatalf("Fetch: %v", err)
			}
		}
	}
	var missing, changed []string
	for id, was := range want {
		if got[id] == "" {
			missing = append(missing, id)
		} else if got[id] != was {
			changed = append(changed, id)
		}
		delete(got, id)
	}
	told, most := strings.Contains(log.String(), "level=ERROR"), 8
	if strings.HasPrefix(name, "history-") {
		most = 20 // in a block
	}
	if len(missing) > most || (len(missing) > 0 || len(changed) > 0 || len(got) > 20) && !told {
		t.Errorf("a bit of %s at %d of %d: missing %v, changed %v, come back %v, %d lost; want few, and an error in the log:\n%s", name, at, len(b), missing, changed, got, s.Lost(), &log)
	}
	if c, err := s.Count(t.Context()); err != nil || c.Waiting+c.Dead+c.Delivered+s.Lost() != len(want)+len(got) && !strings.Contains(log.String(), "deliveries or outcomes in them") {
		t.Errorf("a bit of %s at %d: Count = %+v, %v, %d lost, want %d in all; the log:\n%s", name, at, c, err, s.Lost(), len(want), &log)
	}
	s.Close()
}

// flip changes a byte of a body in a file.
func flip(t *testing.T, d *simdisk.Disk, body string) {
	t.Helper()
	for _, name := range d.Names() {
		b := d.ReadFile(name)
		if i := bytes.Index(b, []byte(body)); i >= 0 {
			b[i+len(body)/2] ^= 1
			d.WriteFile(name, b)
			return
		}
	}
	t.Fatalf("no file has %q", body)
}

// A damaged dead letter or delivery is lost without any other. The log names its messageId once,
// and Lost counts it.
func TestDamagedRecordHidesNoOther(t *testing.T) {
	d := simdisk.New(1)
	var log bytes.Buffer
	c := filequeue.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	open := func() *filequeue.Store {
		t.Helper()
		s, err := filequeue.OpenOn(d, c)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	for _, dest := range []string{"dead", "waits"} {
		for i := range 5 {
			p := store.Put{Delivery: store.Delivery{Destination: dest, ID: fmt.Sprint(i), MessageID: fmt.Sprintf("message-%d", i), Due: s.Now(), Body: []byte(fmt.Sprintf("the %s body %d", dest, i))}}
			p.Keep = dest == "dead"
			out := make([]store.Result, 1)
			if err := s.Put(t.Context(), []store.Put{p}, out); err != nil {
				t.Fatal(err)
			}
			if p.Claim = out[0].Claim; p.Keep {
				if _, err := s.Settle(t.Context(), []store.Settlement{{Verdict: store.Bury, Delivery: p.Delivery, Reason: store.ReasonExpired, At: s.Now()}}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	flip(t, d, "the dead body 2")
	flip(t, d, "the waits body 3")
	for range 2 {
		s := open()
		for range 2 {
			dead := 0
			for d, err := range store.Records(t.Context(), s, store.Query{States: []store.State{store.StateDead}}) {
				if dead++; err != nil || d.ID == "2" {
					t.Errorf("List yields %v, %v; want the dead letters but 2", d.ID, err)
				}
			}
			if dead != 4 {
				t.Errorf("List yields %d, want the 4 undamaged ones", dead)
			}
			ds, err := s.Fetch(t.Context(), []store.Want{{Destination: "waits", Max: 10}}, 1<<20, nil)
			if err != nil || len(ds) != 4 && len(ds) != 0 {
				t.Errorf("Fetch = %d, %v; want 4, or 0 once they are claimed", len(ds), err)
			}
		}
		if c, err := s.Count(t.Context()); err != nil || c.Dead != 4 || c.Waiting != 4 || s.Lost() != 2 {
			t.Errorf("Count = %+v, %v, and %d lost; want 4 dead, 4 waiting, 2 lost", c, err, s.Lost())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"message-2", "message-3"} {
		if n := strings.Count(log.String(), id); n != 1 {
			t.Errorf("the log has %s %d times, want once:\n%s", id, n, &log)
		}
	}
}

// fill creates a store in a folder, with records of every kind in several segments.
func fill(t *testing.T, dir string) {
	t.Helper()
	s, err := filequeue.OpenUnsynced(dir, filequeue.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		p := store.Put{Keep: i < 10, Delivery: store.Delivery{Destination: "a", ID: fmt.Sprint(i), Due: s.Now(), Body: bytes.Repeat([]byte{byte(i)}, 1<<20)}}
		out := make([]store.Result, 1)
		if err := s.Put(t.Context(), []store.Put{p}, out); err != nil {
			t.Fatal(err)
		}
		if p.Claim = out[0].Claim; p.Keep {
			if _, err := s.Settle(t.Context(), []store.Settlement{{Verdict: store.Bury, Delivery: p.Delivery, Reason: store.ReasonExpired, At: s.Now()}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := s.SetDocument(t.Context(), store.Document{Folder: "pause", Name: "a", Value: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Check names all that is missing from a damaged store. Rescue copies the rest to a new store,
// documents included.
func TestCheckAndRescue(t *testing.T) {
	from := filepath.Join(t.TempDir(), "store")
	fill(t, from)
	r, err := filequeue.Check(t.Context(), from, nil)
	if err != nil || r.Waiting != 90 || r.Dead != 10 || r.Documents != 1 || len(r.Missing) != 0 {
		t.Errorf("Check = %+v, %v; want 90 waiting, 10 dead, 1 document, nothing missing", r, err)
	}
	segments, err := filepath.Glob(filepath.Join(from, "*.log"))
	if err != nil || len(segments) < 3 {
		t.Fatal(segments, err)
	}
	// Remove a segment, damage a body in another one, and later remove the manifest.
	if err := os.Remove(segments[1]); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, bytes.Repeat([]byte{20}, 1000))+5] ^= 1
	if err := os.WriteFile(segments[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := filequeue.Open(from, filequeue.Config{Logger: quiet}); !errors.Is(err, filequeue.ErrDamaged) || !strings.Contains(fmt.Sprint(err), "segment 2, of") {
		t.Errorf("Open without a segment = %v, want ErrDamaged that names segment 2", err)
	}
	if err := os.Remove(filepath.Join(from, "MANIFEST")); err != nil {
		t.Fatal(err)
	}
	_, err = filequeue.Check(t.Context(), from, nil)
	for _, want := range []string{"MANIFEST", "segment 2, of", `the delivery at`, `destination "a"`} {
		if !errors.Is(err, filequeue.ErrDamaged) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("Check = %v, want ErrDamaged with %q", err, want)
		}
	}
	to := filepath.Join(t.TempDir(), "rescued")
	last := int64(0)
	rescued, err := filequeue.Rescue(t.Context(), from, to, func(read, of int64) { last = of - read })
	if err != nil || last != 0 || len(rescued.Missing) != 3 || rescued.Dead != 10 || rescued.Waiting < 40 || rescued.Waiting > 65 {
		t.Errorf("Rescue = %+v, %v, %d bytes not read; want 10 dead, 40 to 65 waiting, 3 reports, 0 bytes", rescued, err, last)
	}
	again, err := filequeue.Check(t.Context(), to, nil)
	if again.Waiting != rescued.Waiting || again.Dead != rescued.Dead || again.Documents != 1 || err != nil {
		t.Errorf("Check of the rescued store = %+v, %v; want %d waiting, %d dead, 1 document", again, err, rescued.Waiting, rescued.Dead)
	}
	if _, err := filequeue.Rescue(t.Context(), from, to, nil); err == nil {
		t.Error("Rescue to an existing store = nil, want an error")
	}
	if _, err := filequeue.Check(t.Context(), t.TempDir(), nil); !errors.Is(err, filequeue.ErrDamaged) {
		t.Errorf("Check of an empty folder = %v, want ErrDamaged", err)
	}
	s, err := filequeue.OpenUnsynced(to, filequeue.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Put(t.Context(), []store.Put{{Delivery: store.Delivery{Destination: "a", ID: "99", Due: s.Now()}}}, make([]store.Result, 1)); err != nil {
		t.Error(err)
	}
	if _, err := filequeue.Check(t.Context(), to, nil); !errors.Is(err, filequeue.ErrLocked) {
		t.Errorf("Check of an open store = %v, want ErrLocked", err)
	}
}

// Open fails if the latest segment is missing. If it did not, nothing would show that deliveries
// are lost.
func TestOpenFailsWithoutLatestSegment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := simdisk.New(1)
		open := func() (*filequeue.Store, error) { return filequeue.OpenOn(d, filequeue.Config{Logger: quiet}) }
		for i := range 2 {
			s, err := open()
			if err != nil {
				t.Fatal(err)
			}
			at := s.Now()
			put := store.Put{Delivery: store.Delivery{Destination: "a", ID: fmt.Sprint(i), Type: "track", Body: []byte("{}"), Accepted: at, Due: at}}
			if err := s.Put(t.Context(), []store.Put{put}, make([]store.Result, 1)); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		latest := ""
		for _, name := range d.Names() {
			if strings.HasSuffix(name, ".log") {
				latest = name
			}
		}
		if err := d.Remove(latest); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the failed Open does not hide the loss from the next one
			s, err := open()
			if !errors.Is(err, filequeue.ErrDamaged) || !strings.Contains(err.Error(), latest) {
				t.Fatalf("Open without %s = %v, want ErrDamaged that names it", latest, err)
			}
			if err == nil {
				s.Close()
			}
		}
	})
}
