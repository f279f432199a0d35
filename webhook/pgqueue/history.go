package pgqueue

import (
	"bytes"
	"cmp"
	"compress/flate"
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// A history keeps deliveries after they were delivered. The transaction that settles them stores them
// anew, compressed, so that their chunk can go.
type history struct {
	db     *database
	unkept atomic.Int64 // the result of Unkept
}

// Keeps implements store.History.
func (s *Store) Keeps() bool { return s.db.config.History > 0 }

// Unkept implements store.History.
func (s *Store) Unkept() int64 { return s.claimer.history.unkept.Load() }

// queue queues the statement that keeps deliveries, if there are any. It returns how many of them are not
// kept, as of the end of the transaction.
func (h *history) queue(b *pgx.Batch, rs []store.Record) (lost *int) {
	drafts, unfit := keptDrafts(rs)
	if len(drafts) == 0 {
		return &unfit
	}
	var names, items [][]byte
	var firsts, lasts, accepteds, sizes []int64
	var counts []int32
	var numbers, keys []string
	for _, d := range drafts {
		names, firsts, lasts, accepteds = append(names, []byte(d.queue.destination)), append(firsts, d.first), append(lasts, d.last), append(accepteds, d.accepted)
		counts, sizes, numbers = append(counts, int32(len(d.entries))), append(sizes, d.keptSize()), append(numbers, d.numbers())
		keys, items = append(keys, d.keptKeys()), append(items, compress(d.data))
	}
	b.Queue(h.db.in(keepSQL), names, firsts, lasts, accepteds, counts, sizes, numbers, keys, items).QueryRow(func(row pgx.Row) error {
		var n int
		err := row.Scan(&n)
		unfit += n
		return err
	})
	return &unfit
}

const keepSQL = `SELECT S.keep($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::int[], $6::bigint[], $7::text[], $8::text[], $9::bytea[])`

// keptDrafts returns rows for deliveries, and how many of them are outside the limits of a record.
func keptDrafts(rs []store.Record) (drafts []*draft, unfit int) {
	var all []*entry
	slices.SortFunc(rs, func(x, y store.Record) int { return cmp.Compare(x.Seq, y.Seq) })
	for i := range rs {
		r := &rs[i]
		record, err := r.AppendBinary(make([]byte, 0, len(r.Body)+512))
		if err != nil {
			unfit++
			continue
		}
		all = append(all, &entry{queue: queueKey{r.Destination, false}, accepted: r.Accepted.UnixMicro(), seq: int64(r.Seq), record: record, kept: r})
	}
	return draftsOf(all), unfit
}

func (d *draft) keptSize() (size int64) {
	for _, e := range d.entries {
		size += e.kept.Size()
	}
	return size
}

func (d *draft) keptKeys() string {
	var keys []int32
	for _, e := range d.entries {
		keys = append(keys, keysOf(&e.kept.Delivery)...)
	}
	slices.Sort(keys)
	return array(slices.Compact(keys), func(k int32) int64 { return int64(k) })
}

// keysOf returns hashes of the ids and of the user of d, by which rows are found. Other deliveries may have
// the same ones.
func keysOf(d *store.Delivery) []int32 {
	keys := []int32{idKey(d.ID)}
	if d.MessageID != "" && d.MessageID != d.ID {
		keys = append(keys, idKey(d.MessageID))
	}
	if d.User != "" {
		keys = append(keys, userKey(d.User))
	}
	return keys
}

func idKey(id string) int32     { return hash("i" + id) }
func userKey(user string) int32 { return hash("u" + user) }

func hash(text string) int32 {
	h := fnv.New32a()
	io.WriteString(h, text)
	return int32(h.Sum32())
}

var (
	compressors = sync.Pool{New: func() any {
		w, _ := flate.NewWriter(nil, flate.BestSpeed) // fails only for an unknown level
		return w
	}}
	decompressors = sync.Pool{New: func() any { return flate.NewReader(nil) }}
)

func compress(data []byte) []byte {
	w := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	var b bytes.Buffer
	w.Reset(&b)
	w.Write(data) // into memory
	w.Close()
	return b.Bytes()
}

// maxKept bounds the bytes of a row of the history in memory. A row of several deliveries has chunkBytes.
const maxKept = 64 << 20

// decodeKept returns the deliveries of a row.
func decodeKept(items []byte) (rs []store.Record, err error) {
	r := decompressors.Get().(io.ReadCloser)
	defer decompressors.Put(r)
	r.(flate.Resetter).Reset(bytes.NewReader(items), nil)
	data, err := io.ReadAll(io.LimitReader(r, maxKept))
	for err == nil && len(data) > 0 {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			return nil, errors.New("it is cut off")
		}
		d := store.Record{State: store.StateDelivered}
		err = d.UnmarshalBinary(data[n : n+int(size)])
		rs, data = append(rs, d), data[n+int(size):]
	}
	return rs, err
}

// A keptRow is a row of the history.
type keptRow struct {
	part        int16
	first, last int64          // they stay as they are when deliveries are removed
	records     []store.Record // none if it is damaged
}

func (h *history) scanKept(r pgx.CollectableRow) (k keptRow, err error) {
	var items []byte
	if err = r.Scan(&k.part, &k.first, &k.last, &items); err != nil {
		return k, err
	}
	var damage error
	if k.records, damage = decodeKept(items); damage != nil {
		k.records = nil
		h.db.config.Logger.Error("pgqueue: ignoring delivered deliveries that are damaged; they go when they are too old", "last", k.last, "error", damage)
	}
	return k, nil
}

const keptSQL = `SELECT part, first, last, items FROM S.kept WHERE last = ANY ($1::bigint[])`

// remove removes the deliveries that match from the rows with these last numbers, and returns their
// numbers. It locks rows in the order of their last numbers, and then their partitions in order, so
// that two calls do not deadlock.
func (h *history) remove(ctx context.Context, lasts []int64, match func(*store.Record) bool) (removed []uint64, err error) {
	for some := range slices.Chunk(lasts, chunkPage) {
		var seqs []uint64
		err := pgx.BeginFunc(ctx, h.db.pool, func(tx pgx.Tx) error {
			rows, err := collect(ctx, tx, h.scanKept, h.db.in(keptSQL+` ORDER BY last FOR UPDATE`), some)
			if err != nil {
				return err
			}
			slices.SortStableFunc(rows, func(x, y keptRow) int { return cmp.Compare(x.part, y.part) })
			b := newBatch()
			for _, k := range rows {
				seqs = append(seqs, h.strike(b, k, match)...)
			}
			return tx.SendBatch(ctx, b).Close()
		})
		if err != nil {
			return removed, err
		}
		removed = append(removed, seqs...)
	}
	return removed, nil
}

// strike queues the statements that remove the deliveries that match from a row. It returns their numbers.
// The row keeps its first and last number, by which other calls may be about to find it.
func (h *history) strike(b *pgx.Batch, k keptRow, match func(*store.Record) bool) (seqs []uint64) {
	var size int64
	left := slices.DeleteFunc(k.records, func(r store.Record) bool {
		gone := match(&r)
		if gone {
			seqs, size = append(seqs, r.Seq), size+r.Size()
		}
		return gone
	})
	if len(seqs) == 0 {
		return nil
	}
	if drafts, _ := keptDrafts(left); len(drafts) == 0 {
		b.Queue(h.db.in(`DELETE FROM S.kept WHERE part = $1 AND last = $2`), k.part, k.last)
	} else {
		d := drafts[0] // all of them were in one row before
		numbers := array(d.entries, func(e *entry) int64 { return e.seq - k.first })
		b.Queue(h.db.in(`UPDATE S.kept SET n = $3, size = $4, numbers = $5::text::int[], keys = $6::text::int[], items = $7
WHERE part = $1 AND last = $2`), k.part, k.last, len(d.entries), d.keptSize(), numbers, d.keptKeys(), compress(d.data))
	}
	b.Queue(h.db.in(`UPDATE S.ring SET n = n - $2, size = size - $3 WHERE part = $1`), k.part, len(seqs), size)
	return seqs
}

// rotate makes room for new deliveries, in place of those that are too old. The first call of the function
// empties a partition, which the second one puts to use.
func (h *history) rotate(ctx context.Context) (err error) {
	var age *time.Duration
	if h.db.config.History > 0 {
		age = &h.db.config.History
	}
	for n := 0; n < 2 && err == nil; n++ {
		_, err = h.db.pool.Exec(ctx, h.db.in(`SELECT S.rotate_kept(clock_timestamp(), $1::interval, $2::bigint)`), age, h.db.config.HistoryBytes)
	}
	return err
}
