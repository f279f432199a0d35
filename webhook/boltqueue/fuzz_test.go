package boltqueue

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// examples are ops of every kind.
func examples(t testing.TB) []op {
	row, err := seal(&webhook.Delivery{Destination: "d", ID: "1", Body: []byte("{}"), Due: time.UnixMicro(5).UTC()}, 2)
	if err != nil {
		t.Fatal(err)
	}
	o := lanes.Order{At: -5, Seq: 1 << 40}
	journal := place{kind: inJournal, order: lanes.Order{Seq: 7}}
	block := place{kind: inBlock, block: 300, index: maxEntries - 1}
	waiting := place{kind: inWaiting, segment: 1 << 30, lane: 1 << 31, order: lanes.Order{At: 1 << 50, Seq: 9}}
	return []op{
		{code: opPut, order: o, row: row},
		{code: opDone, place: journal},
		{code: opDone, place: block},
		{code: opRetry, place: waiting, order: o, row: row},
		{code: opBury, place: block, order: o, row: row},
		{code: opNext, next: epoch{1, 2, 3}},
	}
}

func payload(micros int64, all []op) []byte {
	b := appendMicros(nil, time.UnixMicro(micros))
	for _, o := range all {
		switch o.code {
		case opPut:
			b = appendPut(b, o.order, o.row)
		case opDone:
			b = appendEnd(b, webhook.Done, o.place, o.order, nil)
		case opRetry:
			b = appendEnd(b, webhook.Retry, o.place, o.order, o.row)
		case opBury:
			b = appendEnd(b, webhook.Bury, o.place, o.order, o.row)
		case opNext:
			b = appendNext(b, o.next)
		}
	}
	return b
}

// FuzzOps reads payloads. What is accepted is written the same way, and reads
// the same again.
func FuzzOps(f *testing.F) {
	f.Add(payload(1_700_000_000_000_000, examples(f)))
	for _, o := range examples(f) {
		f.Add(payload(-1, []op{o}))
	}
	f.Add([]byte{})
	read := func(b []byte) (micros int64, all []op, err error) {
		err = ops(b, func(m int64, o op) error {
			micros = m
			all = append(all, o)
			return nil
		})
		return micros, all, err
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		micros, all, err := read(b)
		if err != nil || len(all) == 0 {
			return
		}
		again, same, err := read(payload(micros, all))
		if diff := cmp.Diff(all, same, cmp.AllowUnexported(op{}, place{})); diff != "" || err != nil || again != micros {
			t.Errorf("read again: %d, not %d, %v, %s", again, micros, err, diff)
		}
		p := newPlayer()
		ops(b, p.play) // may refuse, and does not panic
	})
}

func TestOps(t *testing.T) {
	want := examples(t)
	var got []op
	err := ops(payload(42, want), func(micros int64, o op) error {
		if micros != 42 {
			t.Errorf("the time is %d, want 42", micros)
		}
		got = append(got, o)
		return nil
	})
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(op{}, place{})); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
}

// FuzzJournal reads files. Both readers take them as they are, and the one that
// passes over damages finds no less than the one that does not.
func FuzzJournal(f *testing.F) {
	dir := f.TempDir()
	j := &journal{path: filepath.Join(dir, "seed")}
	last := epoch{}.next()
	for _, e := range []epoch{last, last.next()} {
		if err := j.prepare(e); err != nil {
			f.Fatal(err)
		}
		for _, o := range examples(f) {
			if err := j.append(payloadEntry(o)); err != nil {
				f.Fatal(err)
			}
		}
		last = e
	}
	j.close()
	whole, err := os.ReadFile(j.path)
	if err != nil {
		f.Fatal(err)
	}
	used := bytes.TrimRight(whole, "\x00")
	f.Add(used)
	f.Add(used[:len(used)/2])
	f.Fuzz(func(t *testing.T, b []byte) {
		whole := &journalFile{path: "journal", b: append(bytes.Clone(b), make([]byte, max(0, journalStep-len(b)))...)}
		strict, lenient := newPlayer(), newPlayer()
		lenient.lenient = true
		_, _, err := whole.play(last, strict)
		found := 0
		cut := &journalFile{path: "journal", b: b}
		cut.salvage(last, func(payload []byte) error { found++; return ops(payload, lenient.play) })
		if err == nil && len(lenient.fresh) < len(strict.fresh) {
			t.Errorf("%d deliveries, and %d with damages passed over, in %d entries", len(strict.fresh), len(lenient.fresh), found)
		}
		cut.guess()
		cut.later(last)
	})
}

func payloadEntry(o op) []byte {
	return append(make([]byte, entryHeader), payload(1, []op{o})...)
}
