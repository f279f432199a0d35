package filequeue_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// The test removes, truncates or overwrites a file of a store. Check reports each loss of
// deliveries, and writes nothing. Rescue copies all other deliveries unchanged.
func TestNoLossIsSilent(t *testing.T) {
	lost := 0
	for seed := range soakenv.Seeds(t, 40) {
		synctest.Test(t, func(t *testing.T) { lost += testNoLossIsSilent(t, seed) })
	}
	if lost == 0 {
		t.Error("no damage lost a delivery, so the test checked nothing; want at least one loss")
	}
}

func testNoLossIsSilent(t *testing.T, seed uint64) (lost int) {
	rnd := rand.New(rand.NewPCG(seed, 6))
	d := smallDisk(seed)
	l := newLedger(t, rnd)
	l.keeps = seed%2 == 0
	defer l.close()
	if err := l.open(d, filequeue.Config{}); err != nil {
		t.Fatal(err)
	}
	l.s.KeepInTables(6000)
	l.body = 4000
	for range 40 + rnd.IntN(120) {
		l.step()
	}
	want := l.states()
	if err := l.s.Close(); err != nil {
		t.Fatal(err)
	}
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "rescued")
	var files []string
	for _, name := range d.Names() {
		if err := os.WriteFile(filepath.Join(from, name), d.ReadFile(name), 0o600); err != nil {
			t.Fatal(err)
		}
		if name != "reserve" && name != "lock" {
			files = append(files, name)
		}
	}
	name := files[rnd.IntN(len(files))]
	what := spoil(t, rnd, filepath.Join(from, name))

	before, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	r, err := filequeue.Check(t.Context(), from, nil)
	if after, _ := os.ReadDir(from); len(after) != len(before) {
		t.Errorf("%s %s: files after Check = %v, want those before: %v", name, what, after, before)
	}
	if name == "MANIFEST" && errors.Is(err, filequeue.ErrVersion) {
		return 0
	}
	if (err != nil) != (len(r.Missing) > 0) || err != nil && !errors.Is(err, filequeue.ErrDamaged) {
		t.Fatalf("%s %s: Check = %+v, %v; want ErrDamaged if and only if something is missing", name, what, r, err)
	}
	rescued, err := filequeue.Rescue(t.Context(), from, to, nil)
	if err != nil || rescued.Waiting != r.Waiting || rescued.Dead != r.Dead || rescued.Delivered != r.Delivered || len(rescued.Missing) != len(r.Missing) {
		t.Fatalf("%s %s: Rescue = %+v, %v; want the numbers of Check = %+v", name, what, rescued, err, r)
	}
	if l.s, err = filequeue.Open(to, filequeue.Config{Logger: quiet, HistoryAge: store.Unlimited}); err != nil {
		t.Fatal(err)
	}
	if len(r.Missing) == 0 && r.InDoubt == "" {
		l.checkDocuments()
	}
	l.damaged = len(r.Missing) > 0
	got := l.states()
	different := 0
	for id, was := range want {
		if got[id] == "" {
			lost++
		} else if got[id] != was {
			different++
		}
		delete(got, id)
	}
	told := strings.Join(r.Missing, "\n")
	if lost+different+len(got) > 0 && told == "" {
		t.Errorf("%s %s: %d deliveries are lost, %d have changed and %d have come back, and Check reports nothing; want a report", name, what, lost, different, len(got))
	}
	if lost > 0 && !strings.Contains(told, "deliver") {
		t.Errorf("%s %s: %d deliveries are lost, want a report of lost deliveries, got:\n%s", name, what, lost, told)
	}
	return lost
}

// spoil damages a file at random, and returns what it did.
func spoil(t *testing.T, rnd *rand.Rand, path string) (what string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := rnd.IntN(len(b))
	some := b[at:min(at+1+rnd.IntN(8192), len(b))]
	switch rnd.IntN(4) {
	case 0:
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		return "removed"
	case 1:
		what, b = "cut short", b[:at]
	case 2:
		what = "with zeros"
		clear(some)
	case 3:
		what = "with random bytes"
		for i := range some {
			some[i] = byte(rnd.IntN(256))
		}
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return what
}
