package pgqueue

import (
	"fmt"
	"strings"
)

// statements are the SQL of a Queue. S. stands for the schema.
type statements struct {
	remember, rememberAny            [generations]string // of puts, by generation
	insert                           string
	claim, next, discover            string // of leases
	finish, advance, verify, release string // of settlements
	bury                             string
	deadLetter, dead, discard        string
	begin, strangers, join           string // of audiences
	members, leave, audiences        string
	count, countDead, countBy        string
	enroll, beat, resign             string // of nodes
	silent, expire, heal             string
	nodes                            string
	pause, resume, paused            string
	giveBack, ids                    string
	putAll                           [generations]string // of PutTx
	insertTx                         string
	generation, turnGeneration       string // of upkeep
	keys                             [generations]string
	newest, keysSize                 string
	shelf, shelves, turnShelf, move  string
}

// byIndex has rows found by index for the rest of the transaction. Plans are kept:
// one that was made while a table was empty goes through all of it later on, and
// what a LIMIT that differs by row leaves is taken for a third of the table. The
// costs that PostgreSQL puts on what is off would have it compile each plan.
const byIndex = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`

// remember is the statement that adds keys to the newest generation, those of the
// query more too.
func remember(more string) string {
	return `WITH fresh AS MATERIALIZED (
	SELECT k FROM unnest($2::uuid[]) k WHERE NOT EXISTS (SELECT FROM S.seen_N o WHERE o.key = k)` + more + `
	ORDER BY k
),
added AS (INSERT INTO S.seen_N SELECT k FROM fresh WHERE (SELECT generation FROM S.state) = $1)
SELECT k FROM fresh`
}

// inTables is the query for the keys of $3 that are neither in the newest generation nor
// in the tables of $4. Without its bit a table is asked for NULL, which ends before
// anything is read; even so, the server prepares for all of them.
func inTables() string {
	sql := `
	UNION ALL
	SELECT k FROM unnest($3::uuid[], $4::int[]) s (k, tables) WHERE NOT EXISTS (SELECT FROM S.seen_N o WHERE o.key = k)`
	for i := range generations {
		sql += fmt.Sprintf(`
	AND NOT EXISTS (SELECT FROM S.seen_%d o WHERE o.key = CASE WHEN tables & %d <> 0 THEN k END)`, i, 1<<i)
	}
	return sql
}

func newStatements(schema string) statements {
	in := func(sql string) string { return strings.ReplaceAll(sql, "S.", schema+".") }
	// N stands for the table of a generation.
	each := func(sql string) (all [generations]string) {
		for i := range all {
			all[i] = in(strings.ReplaceAll(sql, "_N", fmt.Sprint("_", i)))
		}
		return all
	}
	return statements{
		// remember returns the keys of $2 that were not known, which no older generation
		// knows; $1 is the newest. rememberAny is for keys of $3 as well, which those in the
		// tables of $4 may know, a bit for each. If another transaction is adding one of them,
		// they wait for that, and then fail.
		remember:    each(remember("")),
		rememberAny: each(remember(inTables())),
		insert: in(`INSERT INTO S.chunk (shelf, id, destination, due, node, held, items)
SELECT $1, c.* FROM unnest($2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::smallint[], $7::bytea[]) c`),
		putAll: each(`SELECT f::text FROM S.put_all_N($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) f`),
		insertTx: in(`WITH inserted AS (
	INSERT INTO S.chunk (shelf, id, destination, due, node, held, items)
	SELECT $1::int, nextval('S.ids'), c.destination, c.due, 0, c.held, c.items
	FROM unnest($2::bytea[], $3::bigint[], $4::bigint[], $5::bytea[]) c (destination, due, held, items)
)
SELECT pg_notify($6, $7)`),
		// claim claims up to $4[i] chunks of destination $2[i] that are due at $3.
		claim: in(`WITH picked AS MATERIALIZED (
	SELECT c.shelf, c.id FROM unnest($2::bytea[], $4::int[]) l (destination, most),
	LATERAL (
		SELECT shelf, id FROM S.chunk
		WHERE node = 0 AND destination = l.destination AND due <= $3 AND EXISTS (SELECT FROM S.node WHERE id = $1)
		ORDER BY due, id LIMIT l.most FOR UPDATE SKIP LOCKED
	) c
)
UPDATE S.chunk c SET node = $1 FROM picked p
WHERE c.shelf = p.shelf AND c.id = p.id
RETURNING c.shelf, c.id, c.destination, c.held, c.done, c.items`),
		// next returns the first chunk of each destination that is not claimed.
		next: in(`SELECT l.destination, c.due, c.id, c.held FROM unnest($1::bytea[]) l (destination),
LATERAL (
	SELECT due, id, held FROM S.chunk WHERE node = 0 AND destination = l.destination ORDER BY due, id LIMIT 1
) c`),
		// discover is next for all destinations: each is found from the one before
		// by the index.
		discover: in(`WITH RECURSIVE l AS (
	(SELECT destination, due, id, held FROM S.chunk WHERE node = 0 ORDER BY destination, due, id LIMIT 1)
	UNION ALL
	SELECT n.* FROM l, LATERAL (
		SELECT destination, due, id, held FROM S.chunk
		WHERE node = 0 AND destination > l.destination ORDER BY destination, due, id LIMIT 1
	) n
)
SELECT destination, due, id, held FROM l`),
		finish: in(`DELETE FROM S.chunk c USING unnest($2::smallint[], $3::bigint[]) u (shelf, id)
WHERE c.shelf = u.shelf AND c.id = u.id AND c.node = $1 RETURNING c.id`),
		advance: in(`UPDATE S.chunk c SET held = u.held, done = u.done
FROM unnest($2::smallint[], $3::bigint[], $4::smallint[], $5::smallint[], $6::bytea[]) u (shelf, id, before, held, done)
WHERE c.shelf = u.shelf AND c.id = u.id AND c.node = $1 AND c.held = u.before RETURNING c.id`),
		verify: in(`SELECT c.id, c.held, c.done FROM S.chunk c, unnest($2::smallint[], $3::bigint[]) u (shelf, id)
WHERE c.shelf = u.shelf AND c.id = u.id AND c.node = $1 FOR UPDATE OF c`),
		release: in(`UPDATE S.chunk c SET node = 0, due = u.due
FROM unnest($2::smallint[], $3::bigint[], $4::bigint[]) u (shelf, id, due)
WHERE c.shelf = u.shelf AND c.id = u.id AND c.node = $1`),
		bury: in(`INSERT INTO S.dead (died, id, destination, type, reason, record)
SELECT u.died, nextval('S.deaths'), u.destination, u.type, u.reason, u.record
FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bytea[]) u (died, destination, type, reason, record)`),
		deadLetter: in(`SELECT record FROM S.dead WHERE died = $1 AND id = $2`),
		dead: in(`SELECT died, id, record FROM S.dead
WHERE (died, id) > ($1, $2) AND ($3 = '\x'::bytea OR destination = $3) AND ($4 = '\x'::bytea OR type = $4)
AND ($5 = '\x'::bytea OR reason = $5) AND ($6::bigint IS NULL OR died >= $6) AND ($7::bigint IS NULL OR died < $7)
ORDER BY died, id LIMIT $8`),
		discard: in(`DELETE FROM S.dead d USING unnest($1::bigint[], $2::bigint[]) u (died, id)
WHERE d.died = u.died AND d.id = u.id`),
		begin: in(`INSERT INTO S.audience AS a (name, generation) VALUES ($1, 1)
ON CONFLICT (name) DO UPDATE SET generation = a.generation + 1 RETURNING generation`),
		strangers: in(`SELECT u FROM unnest($2::bytea[]) u
WHERE NOT EXISTS (SELECT FROM S.member WHERE audience = $1 AND member = u)`),
		join: in(`INSERT INTO S.member AS m (audience, member, generation)
SELECT $1, u, $3 FROM unnest($2::bytea[]) u ORDER BY u
ON CONFLICT (audience, member) DO UPDATE SET generation = excluded.generation
WHERE m.generation <> excluded.generation RETURNING member, xmax = 0`),
		members: in(`SELECT member, generation FROM S.member WHERE audience = $1 AND member > $2 ORDER BY member LIMIT $3`),
		leave:   in(`DELETE FROM S.member WHERE audience = $1 AND member = ANY ($2::bytea[]) AND generation < $3 RETURNING member`),
		audiences: in(`SELECT name, generation FROM S.audience
WHERE $1::bytea IS NULL OR name > $1 ORDER BY name LIMIT $2`),
		count: in(`SELECT coalesce(sum(held), 0), coalesce(sum(held) FILTER (WHERE node NOT IN (0, $1)), 0),
	min(due) FILTER (WHERE node = 0), count(*) FROM S.chunk`),
		countDead: in(`SELECT count(*) FROM S.dead`),
		countBy: in(`SELECT destination, sum(held), coalesce(sum(held) FILTER (WHERE node NOT IN (0, $1)), 0),
	min(due) FILTER (WHERE node = 0), count(*) FROM S.chunk GROUP BY destination`),
		enroll: in(`INSERT INTO S.node (id, name, expires)
VALUES (nextval('S.ids'), $1, clock_timestamp() + $2::bigint * interval '1 microsecond') RETURNING id`),
		beat: in(`UPDATE S.node SET seen = clock_timestamp(), note = $3,
	steady = CASE WHEN clock_timestamp() - seen < $4::bigint * interval '1 microsecond' THEN steady ELSE clock_timestamp() END,
	expires = clock_timestamp() + $2::bigint * interval '1 microsecond' WHERE id = $1
RETURNING (extract(epoch FROM clock_timestamp()) * 1e6)::bigint, (SELECT shelf FROM S.state), (SELECT generation FROM S.state)`),
		resign: in(`DELETE FROM S.node WHERE id = $1`),
		silent: in(`SELECT EXISTS (SELECT FROM S.node WHERE ` + silent + `)`),
		expire: in(`DELETE FROM S.node WHERE ` + silent + ` RETURNING name`),
		nodes:  in(`SELECT id, name, opened, seen, note FROM S.node ORDER BY opened, id LIMIT 1000`),
		pause:  in(`INSERT INTO S.paused VALUES ($1, clock_timestamp()) ON CONFLICT DO NOTHING`),
		resume: in(`DELETE FROM S.paused WHERE destination = $1`),
		paused: in(`SELECT destination, since FROM S.paused`),
		// giveBack gives back what a node holds but for these.
		giveBack: in(`UPDATE S.chunk c SET node = 0 WHERE node <> 0 AND node = $1 AND NOT EXISTS (
	SELECT FROM unnest($2::smallint[], $3::bigint[]) u (shelf, id) WHERE u.shelf = c.shelf AND u.id = c.id)`),
		// heal gives back what nodes hold that are gone. Each node that holds anything
		// is found from the one before by the index.
		heal: in(`WITH RECURSIVE h AS (
	(SELECT node FROM S.chunk WHERE node <> 0 ORDER BY node LIMIT 1)
	UNION ALL
	SELECT (SELECT node FROM S.chunk WHERE node <> 0 AND node > h.node ORDER BY node LIMIT 1) FROM h WHERE h.node IS NOT NULL
)
UPDATE S.chunk SET node = 0 WHERE node <> 0 AND node = ANY (ARRAY(
	SELECT node FROM h WHERE node IS NOT NULL AND NOT EXISTS (SELECT FROM S.node n WHERE n.id = h.node)))`),
		generation: in(`SELECT generation, (extract(epoch FROM clock_timestamp() - began) * 1e6)::bigint,
	pg_relation_size(('S.seen_' || generation % 8)::regclass) FROM S.state`),
		turnGeneration: in(`UPDATE S.state SET generation = generation + 1, began = clock_timestamp()`),
		newest:         in(`SELECT generation FROM S.state`),
		keys:           each(`SELECT key FROM S.seen_N`),
		keysSize:       in(`SELECT pg_relation_size(('S.seen_' || $1::int)::regclass)`),
		shelf:          in(`SELECT shelf, (extract(epoch FROM clock_timestamp() - shelved) * 1e6)::bigint FROM S.state`),
		// shelves counts no more than $2 chunks of each but the one in use, which is $1.
		shelves: in(`SELECT n::smallint, pg_total_relation_size(('S.chunk_' || n)::regclass), l.*
FROM generate_series(0, 3) n, LATERAL (
	SELECT coalesce(sum(octet_length(items)), 0), count(*)
	FROM (SELECT items FROM S.chunk WHERE shelf = n::smallint AND n <> $1 ORDER BY id LIMIT $2) c
) l`),
		turnShelf: in(`UPDATE S.state SET shelf = $1, shelved = clock_timestamp()`),
		move: in(`WITH moved AS (
	DELETE FROM S.chunk WHERE shelf = $1 AND id IN (
		SELECT id FROM S.chunk WHERE shelf = $1 AND node = 0 LIMIT 1000 FOR UPDATE SKIP LOCKED
	) RETURNING *
)
INSERT INTO S.chunk (shelf, id, destination, due, node, held, done, items)
SELECT $2, id, destination, due, node, held, done, items FROM moved`),
		ids: in(`SELECT nextval('S.ids') FROM generate_series(1, $1::int)`),
	}
}

// silent is true of a node whose claims have expired. A database that stood still makes
// nobody dead: the node $1 judges only if its own heartbeats were stored for a whole term
// ($2), up to now, and none of them late ($3). These times are in microseconds.
const silent = `expires < clock_timestamp() AND id <> $1 AND EXISTS (
	SELECT FROM S.node judge WHERE judge.id = $1
	AND judge.steady <= clock_timestamp() - $2::bigint * interval '1 microsecond'
	AND judge.seen > clock_timestamp() - $3::bigint * interval '1 microsecond')`
