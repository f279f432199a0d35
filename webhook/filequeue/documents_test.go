package filequeue_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// documentsOn returns all documents of some folders, as text.
func documentsOn(t testing.TB, s *filequeue.Store, folders int) (all []string) {
	t.Helper()
	for i := range folders {
		for d, err := range s.Documents(t.Context(), fmt.Sprint("folder ", i), "") {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%s/%s %d %s", d.Folder, d.Name, d.Version, d.Value))
		}
	}
	return all
}

// Documents that fill many tables are the same as those of a map, also after a restart, while
// commits fail, and after a loss of power. Tables and segments that nothing needs are removed.
func TestDocumentsInTables(t *testing.T) {
	for seed := range soakenv.Seeds(t, 8) {
		synctest.Test(t, func(t *testing.T) { testDocumentsInTables(t, seed) })
	}
}

func testDocumentsInTables(t *testing.T, seed uint64) {
	const folders, names = 5, 40
	rnd := rand.New(rand.NewPCG(seed, 38))
	d := smallDisk(seed)
	model := make(map[string]store.Document)
	for life := range 6 {
		s, err := filequeue.OpenOn(d, filequeue.Config{Logger: quiet})
		if err != nil {
			t.Fatalf("seed %d, life %d: %v", seed, life, err)
		}
		var ops atomic.Int64 // of the writer and the janitor
		if life%2 == 1 {
			d.OnOp(func(op simdisk.Op) error {
				if n := ops.Add(1); op.Kind == simdisk.Sync && n%23 == 0 {
					return syscall.EIO
				}
				return nil
			})
		}
		for range 400 {
			doc := store.Document{Folder: fmt.Sprint("folder ", rnd.IntN(folders)), Name: fmt.Sprint(rnd.IntN(names)), Value: bodyOf("v", rnd.IntN(400))}
			at := doc.Folder + "/" + doc.Name
			if doc.Version = model[at].Version; rnd.IntN(3) == 0 {
				doc.Value = nil
			}
			version, err := s.SetDocument(t.Context(), doc)
			switch {
			case err != nil: // nothing was changed, because a later record follows in each life
				time.Sleep(2 * time.Second)
				continue
			case doc.Value == nil:
				delete(model, at)
			default:
				doc.Version = version
				model[at] = doc
			}
			synctest.Wait()
		}
		d.OnOp(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := s.SetDocument(t.Context(), store.Document{Folder: "other", Name: fmt.Sprint(life), Value: []byte("1")}); err != nil {
			t.Fatal(err)
		}
		check := func(when string) {
			t.Helper()
			var want []string
			for at, doc := range model {
				want = append(want, fmt.Sprintf("%s %d %s", at, doc.Version, doc.Value))
				if got, err := s.Document(t.Context(), doc.Folder, doc.Name); err != nil || got.Version != doc.Version || !bytes.Equal(got.Value, doc.Value) {
					t.Fatalf("seed %d, life %d, %s: Document(%q) = %v, %v, want %v", seed, life, when, at, got, err, doc)
				}
			}
			got := documentsOn(t, s, folders)
			slices.Sort(got) // "10" sorts in front of "9 ..."
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, life %d, %s: documents\n%q\nwant\n%q", seed, life, when, got, want)
			}
		}
		check("before the end")
		tables := 0
		for _, name := range d.Names() {
			if strings.HasPrefix(name, "table-") {
				tables++
			}
		}
		if tables == 0 || tables > 10 {
			t.Errorf("seed %d, life %d: %d tables, want 1 to 10: %v", seed, life, tables, d.Names())
		}
		if life%3 == 0 {
			d.Crash()
		}
		s.Close()
		d = d.Reboot(simdisk.Power)
		if s, err = filequeue.OpenOn(d, filequeue.Config{Logger: quiet}); err != nil {
			t.Fatalf("seed %d, life %d: %v", seed, life, err)
		}
		check("after the end")
		s.Close()
	}
}

// Any damage of a table is an error of the call that reads the table, and of Check. Open refuses a
// table without an index. Rescue copies what can be read.
func TestDamagedTables(t *testing.T) {
	from := filepath.Join(t.TempDir(), "store")
	s, err := filequeue.OpenUnsynced(from, filequeue.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	value := bodyOf("v", 60_000)
	for i := range 150 { // more than four memtables have, so that SetDocument flushes one
		if _, err := s.SetDocument(t.Context(), store.Document{Folder: "folder 0", Name: fmt.Sprint(i), Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	want := documentsOn(t, s, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(from, "table-*"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	whole, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, 100, len(whole) / 2, len(whole) - 20, len(whole) - 10, len(whole) - 1, -1, -2} {
		spoiled := bytes.Clone(whole)
		switch at {
		case -1:
			spoiled = spoiled[:len(whole)/2]
		case -2:
			clear(spoiled[len(whole)/2:])
		default:
			spoiled[at] ^= 1
		}
		if err := os.WriteFile(tables[0], spoiled, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := filequeue.Check(t.Context(), from, nil)
		if !errors.Is(err, filequeue.ErrDamaged) || len(r.Missing) != 1 || !strings.Contains(r.Missing[0], "documents") {
			t.Errorf("Check with byte %d of %d changed = %+v, %v; want one report of documents", at, len(whole), r, err)
		}
		if s, err := filequeue.OpenUnsynced(from, filequeue.Config{Logger: quiet}); err == nil {
			var failed error
			for _, err := range s.Documents(t.Context(), "folder 0", "") {
				failed = err
			}
			if !errors.Is(failed, filequeue.ErrDamaged) {
				t.Errorf("Documents with byte %d changed ends with %v, want ErrDamaged", at, failed)
			}
			s.Close()
		} else if !errors.Is(err, filequeue.ErrDamaged) {
			t.Errorf("Open with byte %d changed = %v, want ErrDamaged", at, err)
		}
		to := filepath.Join(t.TempDir(), "rescued")
		rescued, err := filequeue.Rescue(t.Context(), from, to, nil)
		if err != nil || rescued.Documents != r.Documents {
			t.Errorf("Rescue with byte %d changed = %+v, %v; want %d documents", at, rescued, err, r.Documents)
		}
		if s, err = filequeue.OpenUnsynced(to, filequeue.Config{Logger: quiet}); err != nil {
			t.Fatal(err)
		}
		got := documentsOn(t, s, 1)
		if s.Close(); len(got) != r.Documents || len(got) == len(want) || slices.ContainsFunc(got, func(d string) bool { return !slices.Contains(want, d) }) {
			t.Errorf("with byte %d changed, the rescued store has %d documents, want %d, as they were", at, len(got), r.Documents)
		}
	}
}
