package pgqueue

import "strings"

// statements are the SQL of a Store. S. stands for the schema. The hottest ones are functions
// of the schema.
type statements struct {
	put, putTx, settle, bury           string
	claim, heads, headsAfter           string
	verify, release, giveBack, heal    string
	waiting, chunksAt                  string
	erasable, eraseDead                string
	deadLetter, dead, deadOf, discard  string
	audience, addAudience, setAudience string
	strangers, mark, join, leave       string // of members
	members, audiences                 string
	count, countDead, countBy          string
	settings, addSetting, setSetting   string
	removeSetting, absentSetting       string
	enroll, beat, resign, nodes        string
	silent, expire                     string
	generation, turnGeneration         string // of upkeep
	shelf, shelves, turnShelf, move    string
}

// byIndex has rows found by index for the rest of the transaction. Plans are kept:
// one that was made while a table was empty goes through all of it later on, and
// what a LIMIT that differs by row leaves is taken for a third of the table. The
// costs that PostgreSQL puts on what is off would have it compile each plan.
const byIndex = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`

// silent is true of a node whose claims have expired. A database that stood still makes
// nobody dead: the node $1 judges only if its own heartbeats were stored for a whole term
// ($2), up to now, and none of them late ($3). These times are in microseconds.
const silent = `expires < clock_timestamp() AND id <> $1 AND EXISTS (
	SELECT FROM S.node judge WHERE judge.id = $1
	AND judge.steady <= clock_timestamp() - $2::bigint * interval '1 microsecond'
	AND judge.seen > clock_timestamp() - $3::bigint * interval '1 microsecond')`

// heads is the query for the first unclaimed chunk of both queues of each destination of l.
const heads = `SELECT l.destination, f.due, f.held, r.due, r.held FROM l
LEFT JOIN LATERAL (SELECT due, held FROM S.chunk WHERE node = 0 AND destination = l.destination AND NOT retry ORDER BY due, id LIMIT 1) f ON true
LEFT JOIN LATERAL (SELECT due, held FROM S.chunk WHERE node = 0 AND destination = l.destination AND retry ORDER BY due, id LIMIT 1) r ON true`

func newStatements(schema string) statements {
	in := func(sql string) string { return strings.ReplaceAll(sql, "S.", schema+".") }
	return statements{
		put: in(`SELECT stored, known, to_shelf, chunks FROM S.put($1::bigint, $2::bigint, $3::uuid[], $4::bytea[], $5::boolean[],
	$6::bigint[], $7::int[], $8::boolean[], $9::text[], $10::bytea[], false, $11::text, $12::text)`),
		putTx:  in(`SELECT stored FROM S.put($1::bigint, 0, $2::uuid[], $3::bytea[], $4::boolean[], $5::bigint[], $6::int[], NULL, NULL, $7::bytea[], true, $8::text, $9::text)`),
		settle: in(`SELECT S.settle($1::bigint, $2::smallint[], $3::bigint[], $4::int[], $5::int[], $6::text[])`),
		bury: in(`INSERT INTO S.dead (died, id, destination, type, reason, user_id, size, record)
SELECT u.died, nextval('S.ids'), u.destination, u.type, u.reason, u.user_id, u.size, u.record
FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bytea[], $6::bigint[], $7::bytea[])
	u (died, destination, type, reason, user_id, size, record)`),
		// claim claims up to $5[i] chunks of the queue $2[i], $3[i] that are due at $4.
		claim: in(`WITH picked AS MATERIALIZED (
	SELECT c.shelf, c.id, c.outbox FROM unnest($2::bytea[], $3::boolean[], $5::int[]) l (destination, retry, most),
	LATERAL (
		SELECT shelf, id, outbox FROM S.chunk
		WHERE node = 0 AND destination = l.destination AND retry = l.retry AND due <= $4 AND EXISTS (SELECT FROM S.node WHERE id = $1)
		ORDER BY due, id LIMIT l.most FOR UPDATE SKIP LOCKED
	) c
)
UPDATE S.chunk c SET node = $1, outbox = false FROM picked p
WHERE c.shelf = p.shelf AND c.id = p.id
RETURNING c.shelf, c.id, c.destination, c.retry, c.held, coalesce(c.done::text, ''), p.outbox, c.items`),
		heads: in(`WITH l AS (SELECT * FROM unnest($1::bytea[]) l (destination)) ` + heads),
		// headsAfter is for the destinations after $1: each is found from the one before by
		// the index.
		headsAfter: in(`WITH RECURSIVE all_of AS (
	(SELECT destination FROM S.chunk WHERE node = 0 AND destination > $1 ORDER BY destination LIMIT 1)
	UNION ALL
	SELECT (SELECT destination FROM S.chunk WHERE node = 0 AND destination > l.destination ORDER BY destination LIMIT 1)
	FROM all_of l WHERE l.destination IS NOT NULL
),
l AS MATERIALIZED (SELECT destination FROM all_of WHERE destination IS NOT NULL LIMIT $2) ` + heads + ` ORDER BY l.destination`),
		verify: in(`SELECT c.id, c.held, coalesce(c.done::text, '') FROM S.chunk c, unnest($2::smallint[], $3::bigint[]) u (shelf, id)
WHERE c.shelf = u.shelf AND c.id = u.id AND c.node = $1 FOR UPDATE OF c`),
		release: in(`UPDATE S.chunk c SET node = 0, due = u.due
FROM unnest($2::smallint[], $3::bigint[], $4::bigint[]) u (shelf, id, due)
WHERE c.shelf = u.shelf AND c.id = u.id AND c.node = $1`),
		// giveBack gives back what a node has claimed but for these.
		giveBack: in(`UPDATE S.chunk c SET node = 0 WHERE node <> 0 AND node = $1 AND NOT EXISTS (
	SELECT FROM unnest($2::smallint[], $3::bigint[]) u (shelf, id) WHERE u.shelf = c.shelf AND u.id = c.id)`),
		// heal gives back what nodes have claimed that are gone. Each node that has claimed
		// anything is found from the one before by the index.
		heal: in(`WITH RECURSIVE h AS (
	(SELECT node FROM S.chunk WHERE node <> 0 ORDER BY node LIMIT 1)
	UNION ALL
	SELECT (SELECT node FROM S.chunk WHERE node <> 0 AND node > h.node ORDER BY node LIMIT 1) FROM h WHERE h.node IS NOT NULL
)
UPDATE S.chunk SET node = 0 WHERE node <> 0 AND node = ANY (ARRAY(
	SELECT node FROM h WHERE node IS NOT NULL AND NOT EXISTS (SELECT FROM S.node n WHERE n.id = h.node)))`),
		waiting: in(`SELECT shelf, id, coalesce(done::text, ''), items FROM S.chunk WHERE node = 0 AND destination = $1
UNION ALL
SELECT shelf, id, coalesce(done::text, ''), items FROM S.chunk WHERE node <> 0 AND destination = $1`),
		chunksAt: in(`SELECT c.shelf, c.id, coalesce(c.done::text, ''), c.items FROM S.chunk c, unnest($1::smallint[], $2::bigint[]) u (shelf, id)
WHERE c.shelf = u.shelf AND c.id = u.id`),
		erasable: in(`SELECT shelf, id, node, held, coalesce(done::text, ''), items FROM S.chunk
WHERE (shelf, id) > ($1, $2) AND node <> $3 AND position($4::bytea IN items) > 0 ORDER BY shelf, id LIMIT $5 FOR UPDATE`),
		eraseDead:  in(`DELETE FROM S.dead WHERE user_id = $1`),
		deadLetter: in(`SELECT record FROM S.dead WHERE died = $1 AND id = $2`),
		dead: in(`SELECT died, id, record FROM S.dead
WHERE (died, id) > ($1, $2) AND ($3 = '\x'::bytea OR destination = $3) AND ($4 = '\x'::bytea OR type = $4)
AND ($5 = '\x'::bytea OR reason = $5) AND ($6::bigint IS NULL OR died >= $6) AND ($7::bigint IS NULL OR died < $7)
ORDER BY died, id LIMIT $8`),
		deadOf: in(`SELECT d.died, d.id, d.record FROM S.dead d, (SELECT DISTINCT * FROM unnest($1::bigint[], $2::bigint[])) u (died, id)
WHERE d.died = u.died AND d.id = u.id FOR UPDATE OF d`),
		discard: in(`DELETE FROM S.dead d USING unnest($1::bigint[], $2::bigint[]) u (died, id)
WHERE d.died = u.died AND d.id = u.id`),
		audience:    in(`SELECT record FROM S.audience WHERE id = $1 FOR UPDATE`),
		addAudience: in(`INSERT INTO S.audience (id) VALUES ($1) ON CONFLICT DO NOTHING`),
		setAudience: in(`UPDATE S.audience SET record = $2 WHERE id = $1`),
		strangers: in(`SELECT u FROM unnest($2::bytea[]) u
WHERE NOT EXISTS (SELECT FROM S.member WHERE audience = $1 AND member = u) ORDER BY u`),
		mark: in(`UPDATE S.member SET generation = $3 WHERE audience = $1 AND member = ANY ($2::bytea[]) AND generation <> $3`),
		join: in(`INSERT INTO S.member (audience, member, generation) SELECT $1, u, $3 FROM unnest($2::bytea[]) u
ON CONFLICT (audience, member) DO UPDATE SET generation = excluded.generation`),
		leave:     in(`DELETE FROM S.member WHERE audience = $1 AND member = ANY ($2::bytea[])`),
		members:   in(`SELECT member, generation FROM S.member WHERE audience = $1 AND member > $2 ORDER BY member LIMIT $3`),
		audiences: in(`SELECT id, record FROM S.audience WHERE id > $1 AND record <> '' ORDER BY id LIMIT $2`),
		count: in(`SELECT coalesce(sum(held), 0), coalesce(sum(held) FILTER (WHERE node NOT IN (0, $1)), 0),
	min(due) FILTER (WHERE node = 0) FROM S.chunk`),
		countDead: in(`SELECT count(*), coalesce(sum(size), 0)::bigint, min(died) FROM S.dead`),
		countBy: in(`SELECT destination, sum(held), coalesce(sum(held) FILTER (WHERE node NOT IN (0, $1)), 0),
	min(due) FILTER (WHERE node = 0) FROM S.chunk GROUP BY destination`),
		settings: in(`SELECT name, value, version FROM S.setting
WHERE name >= $1 AND ($2::bytea IS NULL OR name > $2) AND substring(name FOR length($1)) = $1 ORDER BY name LIMIT $3`),
		addSetting: in(`INSERT INTO S.setting VALUES ($1, $2, nextval('S.ids')) ON CONFLICT DO NOTHING RETURNING version`),
		setSetting: in(`UPDATE S.setting SET value = $2, version = nextval('S.ids') WHERE name = $1 AND version = $3 RETURNING version`),
		removeSetting: in(`WITH gone AS (DELETE FROM S.setting WHERE name = $1 AND version = $2 RETURNING name)
SELECT nextval('S.ids') FROM gone`),
		absentSetting: in(`SELECT nextval('S.ids') WHERE NOT EXISTS (SELECT FROM S.setting WHERE name = $1)`),
		enroll: in(`INSERT INTO S.node (id, name, expires)
VALUES (nextval('S.ids'), $1, clock_timestamp() + $2::bigint * interval '1 microsecond') RETURNING id`),
		beat: in(`UPDATE S.node SET seen = clock_timestamp(), note = $3,
	steady = CASE WHEN clock_timestamp() - seen < $4::bigint * interval '1 microsecond' THEN steady ELSE clock_timestamp() END,
	expires = clock_timestamp() + $2::bigint * interval '1 microsecond' WHERE id = $1
RETURNING (extract(epoch FROM clock_timestamp()) * 1e6)::bigint`),
		resign: in(`DELETE FROM S.node WHERE id = $1`),
		nodes:  in(`SELECT id, name, opened, seen, note FROM S.node ORDER BY opened, id LIMIT 1000`),
		silent: in(`SELECT EXISTS (SELECT FROM S.node WHERE ` + silent + `)`),
		expire: in(`DELETE FROM S.node WHERE ` + silent + ` RETURNING name`),
		generation: in(`SELECT generation, (extract(epoch FROM clock_timestamp() - began) * 1e6)::bigint,
	pg_relation_size(('S.seen_' || generation % 2)::regclass) FROM S.state`),
		turnGeneration: in(`UPDATE S.state SET generation = generation + 1, began = clock_timestamp()`),
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
INSERT INTO S.chunk (shelf, id, destination, retry, due, node, held, done, why, outbox, items)
SELECT $2, id, destination, retry, due, node, held, done, why, outbox, items FROM moved`),
	}
}
