package pgqueue

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// A listing makes a page of List, in a transaction that sees one state of the tables. It reads the numbers
// of deliveries first, from the rows around its cursor, and then those deliveries that are next.
type listing struct {
	store.Listing
	store  *Store
	tx     pgx.Tx
	cursor int64     // the page goes on behind this number
	names  [][]byte  // of the destinations; nil: all
	bound  int64     // rows are left out whose deliveries were all accepted too late or, if q.Oldest, too early
	until  time.Time // the page ends then, although more deliveries may follow
}

// A source is a table that a list reads.
type source struct {
	table       string
	first, last string // columns
	columns     string // those of span, from row to done
	keyed       bool   // the rows have keys
}

var (
	chunks = source{"chunk", "c.first", "c.last", "c.id, c.first, c.last, octet_length(c.items)::bigint, c.numbers, coalesce(c.done::text, '')", false}
	dead   = source{"dead", "c.seq", "c.seq", "c.seq, c.seq, c.seq, c.size, NULL::int[], ''", true}
	kept   = source{"kept", "c.first", "c.last", "c.last, c.first, c.last, c.size, c.numbers, ''", true}
)

// A span is a row of a source, without its deliveries.
type span struct {
	from        *source
	near        bool  // the row is one of those next to the cursor, of which there may be more
	row         int64 // the id of a chunk, the last number of another row
	first, last int64
	size        int64   // of the deliveries, approximately
	numbers     []int32 // less first; nil: all numbers from first to last
	done        string  // which deliveries of a chunk are done
}

// len is how many deliveries the row has, done ones included.
func (s *span) len() int {
	if s.numbers == nil {
		return int(s.last - s.first + 1)
	}
	return len(s.numbers)
}

// each calls f with the number of each delivery that is not done.
func (s *span) each(f func(seq int64)) {
	for i := range s.len() {
		if isSet(s.done, i) {
			continue
		}
		if s.numbers == nil {
			f(s.first + int64(i))
		} else {
			f(s.first + int64(s.numbers[i]))
		}
	}
}

// A pick is a delivery that is next on the page.
type pick struct {
	seq  int64
	from *span
}

const (
	// A list reads up to fewRows rows of each table at first, and as many deliveries as a page may have. If
	// the query selects few of them, it reads manyRows at once from then on.
	fewRows, manyRows = 64, 256
	// listBytes bounds, approximately, the bytes of the rows that it reads at once. A single row may have more.
	listBytes = 8 << 20
	// listTime bounds, approximately, how long a List reads of which the query selects little.
	listTime = 250 * time.Millisecond
)

func (l *listing) run(ctx context.Context) error {
	if err := l.start(ctx); err != nil {
		return err
	}
	for rows, most := fewRows, l.Max; ; rows, most = manyRows, store.MaxListed {
		picks, more, err := l.find(ctx, rows, most)
		if err != nil {
			return err
		}
		found, err := l.read(ctx, picks)
		if err != nil {
			return err
		}
		for _, p := range picks {
			if r, ok := found[p.seq]; ok && !l.Add(&r) {
				return nil
			}
		}
		if !more {
			l.Next = 0
			return nil
		}
		if l.Next != 0 && time.Now().After(l.until) {
			return nil
		}
	}
}

// start sets where the page begins.
func (l *listing) start(ctx context.Context) error {
	q := l.Query
	if l.cursor = int64(min(l.After, math.MaxInt64/2)); l.After == 0 && !q.Oldest {
		l.cursor = math.MaxInt64 / 2
	}
	if len(q.Destinations) > 0 {
		l.names = bytesOf(slices.Compact(slices.Sorted(slices.Values(q.Destinations))))
	}
	bound := q.To
	l.bound = never
	if q.Oldest {
		bound, l.bound = q.From, math.MinInt64
	}
	if bound.IsZero() {
		return nil
	}
	l.bound = bound.UnixMicro()
	at, err := collect(ctx, l.tx, pgx.RowTo[int64], l.store.db.in(seekSQL), l.bound, store.MaxSkew.Microseconds(), q.Oldest)
	if err == nil && l.Compare(uint64(l.cursor), uint64(at[0])) < 0 {
		l.cursor = at[0]
	}
	return err
}

const seekSQL = `SELECT S.seek($1, $2, $3)`

// find returns deliveries that are next, up to most of them, and moves the cursor behind them. It reads up
// to limit rows of each table, and reports whether there may be more.
func (l *listing) find(ctx context.Context, limit, most int) (picks []pick, more bool, err error) {
	q := l.Query
	b := newBatch()
	b.Queue(`SELECT set_config('plan_cache_mode', 'force_generic_plan', true)`) // to plan takes longer than a page
	var spans []span
	for _, from := range []struct {
		source *source
		wanted bool
	}{
		{&chunks, slices.ContainsFunc(store.Pending(), q.HasState)}, {&dead, q.HasState(store.StateDead)}, {&kept, q.HasState(store.StateDelivered)},
	} {
		if !from.wanted {
			continue
		}
		args := []any{l.cursor, limit, l.names, l.bound}
		keyed := q.ID != "" && from.source.keyed
		if keyed {
			args = append(args, idKey(q.ID))
		}
		b.Queue(l.store.db.in(from.source.spansSQL(q.Oldest, l.names != nil, keyed)), args...).Query(func(rows pgx.Rows) error {
			read, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (s span, err error) {
				s.from = from.source
				return s, r.Scan(&s.near, &s.row, &s.first, &s.last, &s.size, &s.numbers, &s.done)
			})
			spans = append(spans, read...)
			return err
		})
	}
	if err := l.tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, false, err
	}
	end, more := l.end(spans, limit)
	spans, end, more = l.nearest(spans, most, end, more)
	for i := range spans {
		spans[i].each(func(seq int64) {
			if l.behind(l.cursor, seq) && (!more || !l.behind(end, seq)) {
				picks = append(picks, pick{seq, &spans[i]})
			}
		})
	}
	slices.SortFunc(picks, func(x, y pick) int { return l.Compare(uint64(x.seq), uint64(y.seq)) })
	if n := affordable(picks, most); n < len(picks) {
		picks, more, end = picks[:n], true, picks[n-1].seq
	}
	l.cursor = end
	return picks, more, nil
}

// behind reports whether the number seq comes behind another one.
func (l *listing) behind(number, seq int64) bool {
	return seq != number && seq > number == l.Query.Oldest
}

// end returns the number up to which spans have all deliveries that are next. If more is false,
// spans have all that are left. A source with as many nearby rows as were asked for may have more
// behind the last of them.
func (l *listing) end(spans []span, limit int) (end int64, more bool) {
	near := make(map[*source]int)
	for _, s := range spans {
		if s.near {
			near[s.from]++
		}
		if near[s.from] == limit && s.near && (!more || l.behind(s.last, end)) {
			end, more = s.last, true
		}
	}
	return end, more
}

// nearest returns the spans that may have one of the first most numbers. All numbers of the other
// spans are behind the end that it returns.
func (l *listing) nearest(spans []span, most int, end int64, more bool) ([]span, int64, bool) {
	edge := func(s *span) (near, far int64) {
		if l.Query.Oldest {
			return s.first, s.last
		}
		return s.last, s.first
	}
	slices.SortFunc(spans, func(x, y span) int {
		a, _ := edge(&x)
		b, _ := edge(&y)
		return l.Compare(uint64(a), uint64(b))
	})
	n, reached := 0, l.cursor
	for i := range spans {
		near, far := edge(&spans[i])
		if n >= most && l.behind(reached, near) && (!more || l.behind(reached, end)) {
			return spans[:i], reached, true
		}
		if n += spans[i].len(); l.behind(reached, far) {
			reached = far
		}
	}
	return spans, end, more
}

// affordable returns how many of the picks can be read at once.
func affordable(picks []pick, most int) int {
	size := int64(0)
	seen := make(map[*span]bool)
	for i, p := range picks[:min(most, len(picks))] {
		if !seen[p.from] {
			seen[p.from] = true
			if size += p.from.size; size > listBytes && i > 0 {
				return i
			}
		}
	}
	return min(most, len(picks))
}

// read returns the picked deliveries, by their numbers. It leaves out damaged ones.
func (l *listing) read(ctx context.Context, picks []pick) (map[int64]store.Record, error) {
	rows := make(map[*source][]int64)
	found := make(map[int64]store.Record, len(picks))
	seen := make(map[*span]bool)
	for _, p := range picks {
		if !seen[p.from] {
			seen[p.from] = true
			rows[p.from.from] = append(rows[p.from.from], p.from.row)
		}
	}
	b := newBatch()
	var waiting []*chunk
	db := l.store.db
	if ids := rows[&chunks]; ids != nil {
		b.Queue(db.in(chunksSQL), ids).Query(into(&waiting, scanChunk))
	}
	add := func(rs ...store.Record) {
		for _, r := range rs {
			if r.Destination != "" { // else it is damaged
				found[int64(r.Seq)] = r
			}
		}
	}
	if seqs := rows[&dead]; seqs != nil {
		b.Queue(db.in(deadSQL), seqs).Query(func(rows pgx.Rows) error {
			letters, err := pgx.CollectRows(rows, l.store.scanDead)
			add(letters...)
			return err
		})
	}
	if lasts := rows[&kept]; lasts != nil {
		b.Queue(db.in(keptSQL), lasts).Query(func(rows pgx.Rows) error {
			all, err := pgx.CollectRows(rows, l.store.claimer.history.scanKept)
			for _, k := range all {
				add(k.records...)
			}
			return err
		})
	}
	err := l.tx.SendBatch(ctx, b).Close()
	add(l.store.memory.records(waiting)...)
	return found, err
}

// records returns the deliveries of chunks that wait. It locks mu. Deliveries in chunks of other nodes are
// claimed.
func (m *memory) records(cs []*chunk) (rs []store.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range cs {
		own := m.chunks[c.id]
		for i := range c.items {
			if c.items[i].state != free {
				continue
			}
			r := store.Record{Delivery: c.items[i].d, State: store.StateWaiting}
			if c.owner == behind {
				r.State = store.StateBehind
			} else if c.owner != 0 && (own == nil || own.items[i].state != free) {
				r.State = store.StateClaimed
			}
			rs = append(rs, r)
		}
	}
	return rs
}

const chunksSQL = `SELECT ` + chunkColumns + `, c.node FROM S.chunk c, unnest($1::bigint[]) u (id)
WHERE c.part = (u.id & 3)::smallint AND c.id = u.id`

const deadSQL = `SELECT seq, record FROM S.dead WHERE seq = ANY ($1::bigint[])`

// spansSQL returns the statement that finds the rows next to the cursor $1, up to $2 of them, and those with
// numbers on both sides of the cursor or, for a list that begins with the oldest deliveries, on both sides of
// the end of the rows next to it. $3 has the destinations, $4 the bound of when deliveries were
// accepted, and $5 the key of an id.
func (s *source) spansSQL(oldest, named, keyed bool) string {
	next, order, pivot, bound := "LAST < $1::bigint", "LAST DESC", "$1::bigint", "c.accepted < $4::bigint"
	if oldest {
		next, order, pivot, bound = "LAST > $1::bigint", "LAST", "(SELECT CASE count(*) WHEN $2 THEN max(last) END FROM near)", "(c.accepted >= $4::bigint OR FIRST < LAST)"
	}
	const columns = "SELECT COLUMNS FROM "
	text := columns
	switch {
	case keyed:
		text += "(SELECT * FROM S.TABLE WHERE keys @> ARRAY[$5::int] OFFSET 0) c WHERE " + strings.Replace(next, "LAST <", "FIRST <", 1) +
			" AND ($3::bytea[] IS NULL OR c.destination = ANY ($3::bytea[])) AND BOUND AND $2::bigint > 0"
	case named:
		text += "unnest($3::bytea[]) d (name), LATERAL (SELECT * FROM S.TABLE c WHERE c.destination = d.name AND BOUND AND " +
			next + " ORDER BY " + order + " LIMIT $2) c ORDER BY " + order + " LIMIT $2"
	default:
		text += "S.TABLE c WHERE $3::bytea[] IS NULL AND BOUND AND " + next + " ORDER BY " + order + " LIMIT $2"
	}
	text = "WITH near (id, first, last, size, numbers, done) AS MATERIALIZED (" + text + ") SELECT NOT KEYED, near.* FROM near"
	if s != &dead && !keyed {
		text += " UNION ALL SELECT false, COLUMNS FROM "
		if named {
			text += "unnest($3::bytea[]) d (name) JOIN S.TABLE c ON c.destination = d.name"
		} else {
			text += "S.TABLE c"
		}
		text += " WHERE LAST >= " + pivot + " AND LAST < " + pivot + " + 4194304 AND FIRST < " + pivot + " AND BOUND"
		if oldest {
			text = strings.Replace(text, "LAST >= (", "LAST > (", 1)
		}
	}
	text = strings.ReplaceAll(text, "BOUND", bound)
	return strings.NewReplacer("COLUMNS", s.columns, "TABLE", s.table, "LAST", s.last, "FIRST", s.first, "KEYED", strconv.FormatBool(keyed)).Replace(text)
}
