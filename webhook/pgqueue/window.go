package pgqueue

import (
	"context"
	"encoding/binary"
	"math/bits"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/hookferry/analytics/webhook/storekit"
)

const (
	// generations is how many generations of keys are remembered. Keys come in no
	// order, so all of the index that they are added to is in use: that of one
	// generation, which is small beside the database's memory.
	generations = 8
	// worthReading is how many keys of an older generation are read for each that
	// this process asks about. To look for one in all tables costs about as much.
	worthReading = 64
)

// A window is what this process knows of what was put before. A generation that is over
// does not change any more: a key that its filter does not know is not in it, and need
// not be looked for in the database.
type window struct {
	mu      sync.Mutex
	newest  int64
	filters [generations]filter // of older generations; nil: not read
	asked   int                 // keys, less those that reading was worth
}

// turn notes the number of the newest generation, and reports whether that is news.
func (w *window) turn(newest int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if newest == w.newest {
		return false
	}
	if newest < w.newest || newest-w.newest >= generations { // the former: the database is not what it was
		w.newest, w.filters = newest, [generations]filter{}
	}
	for w.newest < newest {
		w.newest++
		w.filters[w.newest%generations] = nil
	}
	return true
}

// split divides keys into those that no older generation knows, and those that
// some may know: a bit for the table of each. It returns the newest generation as well.
func (w *window) split(keys []storekit.Key) (newest int64, certain, suspects []storekit.Key, tables []int32) {
	w.mu.Lock()
	newest = w.newest
	filters := w.filters
	w.asked += len(keys)
	w.mu.Unlock()
	for _, k := range keys {
		in := int32(0)
		for g := max(newest-generations+1, 0); g < newest; g++ {
			if f := filters[g%generations]; f == nil || f.has(k) {
				in |= 1 << (g % generations)
			}
		}
		if in == 0 {
			certain = append(certain, k)
			continue
		}
		suspects, tables = append(suspects, k), append(tables, in)
	}
	return newest, certain, suspects, tables
}

// unread returns the newest of the older generations that have no filter, if there is
// one, and how many keys it is worth to read.
func (w *window) unread() (number int64, worth int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for g := w.newest - 1; g > w.newest-generations && g >= 0; g-- {
		if w.filters[g%generations] == nil {
			return g, w.asked * worthReading, true
		}
	}
	return 0, 0, false
}

// learn adds the filter of a generation of so many keys, unless that was forgotten
// meanwhile.
func (w *window) learn(number int64, f filter, keys int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if number < w.newest && number > w.newest-generations {
		w.filters[number%generations] = f
		w.asked = max(0, w.asked-keys/worthReading)
	}
}

// turned notes the number of the newest generation.
func (q *Queue) turned(newest int64) {
	if q.window.turn(newest) {
		select {
		case q.turns <- struct{}{}:
		default:
		}
	}
}

// study reads older generations, each once it is worth it, until the Queue is
// closed.
func (q *Queue) study() {
	tick := time.NewTicker(q.config.Poll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-q.turns:
		case <-q.background.Done():
			return
		}
		for more := true; more; {
			var err error
			if more, err = q.readKeys(); err != nil && q.background.Err() == nil {
				q.config.Logger.Debug("pgqueue: keys of older generations are looked for in the database", "error", err)
			}
		}
	}
}

// readKeys reads a generation into a filter, and reports whether it did: one has none,
// and it was worth it.
func (q *Queue) readKeys() (bool, error) {
	number, worth, ok := q.window.unread()
	if !ok {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(q.background, writeTimeout)
	defer cancel()
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	var size int64
	if err := conn.QueryRow(ctx, q.sql.keysSize, number%generations).Scan(&size); err != nil {
		return false, err
	}
	n := int(size / seenBytes)
	if n > min(worth, q.config.DedupMax) {
		return false, nil
	}
	ctx, cancel = context.WithTimeout(q.background, keysTime(n))
	defer cancel()
	rows, err := conn.Query(ctx, q.sql.keys[number%generations])
	if err != nil {
		return false, err
	}
	f := newFilter(n)
	var k [len(storekit.Key{})]byte
	if _, err := pgx.ForEachRow(rows, []any{&k}, func() error {
		f.add(k)
		return nil
	}); err != nil {
		return false, err
	}
	// The table may have been truncated under it, for another generation.
	var newest int64
	if err := conn.QueryRow(ctx, q.sql.newest).Scan(&newest); err != nil {
		return false, err
	}
	q.turned(newest)
	q.window.learn(number, f, n)
	return true, nil
}

// keysTime bounds the reading of n keys: to many times what it takes, which is 0.3 us for
// each where nothing else is to do.
func keysTime(n int) time.Duration { return writeTimeout + time.Duration(n)*20*time.Microsecond }

// A filter knows keys, and takes about one in a thousand others for known. It is a
// Bloom filter of which each key has its bits in one block.
type filter [][8]uint64

// newFilter returns a filter for n keys, of two bytes each.
func newFilter(n int) filter { return make(filter, n/32+1) }

// bitsOf is how many bits a key has in its block.
const bitsOf = 7

func (f filter) place(k storekit.Key) (block *[8]uint64, hash uint64) {
	i, _ := bits.Mul64(binary.LittleEndian.Uint64(k[:8]), uint64(len(f)))
	return &f[i], binary.LittleEndian.Uint64(k[8:])
}

func (f filter) add(k storekit.Key) {
	block, h := f.place(k)
	for range bitsOf {
		block[h>>6&7] |= 1 << (h & 63)
		h >>= 9
	}
}

func (f filter) has(k storekit.Key) bool {
	block, h := f.place(k)
	for range bitsOf {
		if block[h>>6&7]&(1<<(h&63)) == 0 {
			return false
		}
		h >>= 9
	}
	return true
}

// uuids returns keys as every QueryExecMode knows them.
func uuids(keys []storekit.Key) []pgtype.UUID {
	all := make([]pgtype.UUID, len(keys))
	for i, k := range keys {
		all[i] = pgtype.UUID{Bytes: k, Valid: true}
	}
	return all
}
