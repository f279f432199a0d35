package boltqueue

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/webhook"
)

// A longestRead notes how much is asked for at once.
type longestRead struct {
	*bytes.Reader
	longest int
}

func (r *longestRead) ReadAt(b []byte, off int64) (int, error) {
	r.longest = max(r.longest, len(b))
	return r.Reader.ReadAt(b, off)
}

// A page is read as far as what is in it goes, whatever it says of itself.
func TestPageThatOverflowsTooFar(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	const large = 6 << 20
	for i := range 2 {
		d := webhook.Delivery{Destination: "a", ID: fmt.Sprint(i), Body: make([]byte, large), Due: time.Now()}
		if _, err := q.Put(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	open := func() (*tree, *longestRead) {
		r := &longestRead{Reader: bytes.NewReader(b)}
		tr := &tree{file: r}
		if err := tr.readMeta(); err != nil {
			t.Fatal(err)
		}
		tr.seen = make([]uint64, tr.pages/64+1)
		return tr, r
	}
	tr, _ := open()
	if err := tr.list(tr.freelist); err != nil {
		t.Errorf("the list of free pages: %v", err)
	}
	if err := tr.walk(tr.root, 0, nil, nil); err != nil {
		t.Errorf("the file as it is: %v", err)
	}
	size := uint64(tr.pageSize)
	spoilt := 0
	for id := uint64(2); id < 40; id++ {
		page := b[id*size:]
		if native.Uint64(page) != id || native.Uint32(page[12:]) > 0 || native.Uint16(page[8:]) != leafPage {
			continue
		}
		spoilt++
		native.PutUint32(page[12:], uint32(tr.pages-1-id))
		tr, r := open()
		if _, err := tr.page(id); err == nil || r.longest > int(size) {
			t.Errorf("page %d that says it is the rest of the file: %v, and %d bytes were read at once", id, err, r.longest)
		}
		native.PutUint32(page[12:], 0)
	}
	if spoilt == 0 {
		t.Error("no page was spoilt")
	}
}

// Lists of free pages of all lengths are read.
func TestLongListOfFreePages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "free.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, FreelistType: bolt.FreelistMapType})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	name := []byte("b")
	for pages := range 12 {
		if err := db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists(name)
			if err != nil {
				return err
			}
			return b.Put([]byte("k"), make([]byte, pages*701*4096))
		}); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := walk(f, true, nil); err != nil {
			t.Errorf("with %d pages free: %v", db.Stats().FreePageN, err)
		}
		f.Close()
	}
}
