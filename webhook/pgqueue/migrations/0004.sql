-- search_path is set to the schema, so names need no schema. Destinations, users and other
-- texts of callers may have any bytes, and so are bytea. Times in bigint are microseconds
-- since 1970.

CREATE SEQUENCE ids;

-- A node is a Store that is open. Its claims hold until it expires and another node removes
-- it from this table.
CREATE TABLE node (
    id      bigint PRIMARY KEY,
    name    text NOT NULL,
    opened  timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen    timestamptz NOT NULL DEFAULT clock_timestamp(), -- its latest heartbeat
    steady  timestamptz NOT NULL DEFAULT clock_timestamp(), -- no heartbeat since then was late
    expires timestamptz NOT NULL,
    note    bytea -- what it presents to callers of Nodes
);

-- A document is a small value, such as a pause. Its row stays for an hour after it was removed, with
-- value null. Each change takes the next version from document_state, whose row is locked until the
-- commit: so versions are in the order of commits. forgotten is the latest version of which the row
-- is deleted.
CREATE TABLE document (
    folder  bytea NOT NULL,
    name    bytea NOT NULL,
    value   bytea,
    version bigint NOT NULL UNIQUE,
    changed timestamptz NOT NULL,
    PRIMARY KEY (folder, name)
);
CREATE INDEX document_removed ON document (changed) WHERE value IS NULL;

CREATE TABLE document_state (
    id        int PRIMARY KEY,
    latest    bigint NOT NULL,
    forgotten bigint NOT NULL
);
INSERT INTO document_state VALUES (0, 0, 0);

-- set_document changes a document that has the version old, and returns the new version. If it has
-- another version, the result is null.
CREATE FUNCTION set_document(in_folder bytea, in_name bytea, in_value bytea, old bigint)
RETURNS bigint LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    new bigint;
BEGIN
    UPDATE document_state SET latest = latest + 1 RETURNING latest INTO new;
    IF old = 0 THEN
        INSERT INTO document AS d VALUES (in_folder, in_name, in_value, new, clock_timestamp())
        ON CONFLICT (folder, name) DO UPDATE SET value = excluded.value, version = excluded.version, changed = excluded.changed
        WHERE d.value IS NULL;
    ELSE
        UPDATE document SET value = in_value, version = new, changed = clock_timestamp()
        WHERE folder = in_folder AND name = in_name AND version = old AND value IS NOT NULL;
    END IF;
    IF NOT FOUND THEN
        new := NULL;
    END IF;
    RETURN new;
END
$$;

-- forget_documents deletes the rows of documents that were removed long ago.
CREATE FUNCTION forget_documents(age interval)
RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET lock_timeout = '200ms' SET enable_seqscan = off SET jit = off
AS $$
BEGIN
    IF EXISTS (SELECT FROM document WHERE value IS NULL AND changed < clock_timestamp() - age) THEN
        PERFORM FROM document_state FOR UPDATE;
        WITH gone AS (
            DELETE FROM document WHERE value IS NULL AND changed < clock_timestamp() - age RETURNING version
        )
        UPDATE document_state SET forgotten = greatest(forgotten, (SELECT max(version) FROM gone));
    END IF;
END
$$;

-- A chunk is up to 256 deliveries to one destination, all fresh or all retries. It is deleted
-- once all of them are done. The deliveries that are put in a chunk get the numbers (Seq) from id / 4 * 256
-- on. They keep them in the chunks of their retries, and in a chunk that moves to another partition. A
-- list reads chunks by last; so first is greater than last - 2^22. New chunks go to one partition, until it is large. Then they go to
-- the next one, and a partition is truncated once it is empty: vacuum has nothing to do.
--
-- A delivery with a key has a chunk of its own. Of the chunks with one key, only the first one, by its
-- number, is in a queue or claimed. The others are behind it. If all are behind, the key is in owed.
CREATE TABLE chunk (
    part        smallint NOT NULL, -- the partition
    id          bigint   NOT NULL, -- from ids, and part in its last two bits
    destination bytea    NOT NULL,
    retry       boolean  NOT NULL,
    due         bigint   NOT NULL, -- no delivery that waits is due earlier
    node        bigint   NOT NULL, -- the node that has claimed it; 0: none; -1: it is behind another one
    waiting     smallint NOT NULL, -- how many deliveries are not done
    done        varbit,            -- a bit for each delivery; null: none is done
    reason      bytea,             -- why the first delivery failed last
    outbox      boolean  NOT NULL, -- stored in a transaction of a caller; false once its first claim ends
    first       bigint   NOT NULL, -- no delivery has a smaller number
    last        bigint   NOT NULL, -- and none has a greater one
    accepted    bigint   NOT NULL, -- none was accepted earlier
    numbers     int[],             -- of each delivery, less first; null: 0, 1, 2 ...
    key         uuid,              -- of its delivery, the first 128 bits of a SHA-256; null: it has none
    items       bytea    NOT NULL, -- the deliveries, in the order they were due
    PRIMARY KEY (id, part)
) PARTITION BY LIST (part);

ALTER TABLE chunk ALTER items SET STORAGE EXTERNAL;

CREATE TABLE chunk_0 PARTITION OF chunk FOR VALUES IN (0);
CREATE TABLE chunk_1 PARTITION OF chunk FOR VALUES IN (1);
CREATE TABLE chunk_2 PARTITION OF chunk FOR VALUES IN (2);
CREATE TABLE chunk_3 PARTITION OF chunk FOR VALUES IN (3);

CREATE INDEX chunk_due ON chunk (destination, retry, due, id) WHERE node = 0;
CREATE INDEX chunk_node ON chunk (node) WHERE node > 0;
CREATE INDEX chunk_last ON chunk (last, first);
CREATE INDEX chunk_destination ON chunk (destination, last, first);
CREATE INDEX chunk_key ON chunk (key, first) WHERE key IS NOT NULL;

-- A stripe is a lock for all keys of which stripe_of returns its id. Who puts a delivery with a key holds
-- it from before the delivery has a number until the commit. So the numbers of a key are in the order
-- of commits. Who releases a delivery holds it, too. Its rows are never changed, only locked.
CREATE TABLE stripe (id int PRIMARY KEY);
INSERT INTO stripe SELECT generate_series(0, 16383);

CREATE FUNCTION stripe_of(key uuid)
RETURNS int LANGUAGE sql IMMUTABLE
AS $$ SELECT (get_byte(uuid_send(key), 0) << 6) | (get_byte(uuid_send(key), 1) >> 2) $$;

-- The keys whose next delivery is to be released, which somebody could not do, because another
-- transaction had the stripe. It has no index, so that no insertion waits for another transaction.
CREATE TABLE owed (key uuid NOT NULL);
ALTER TABLE owed REPLICA IDENTITY FULL;

-- The dedup window: the keys of what was put, each the first 128 bits of a SHA-256. New keys go
-- to one partition. Once that is full or old, the other one is truncated and takes new keys.
CREATE TABLE dedup (
    part smallint NOT NULL,
    key  uuid     NOT NULL
) PARTITION BY LIST (part);

CREATE TABLE dedup_0 PARTITION OF dedup FOR VALUES IN (0);
CREATE TABLE dedup_1 PARTITION OF dedup FOR VALUES IN (1);
CREATE UNIQUE INDEX ON dedup_0 (key);
CREATE UNIQUE INDEX ON dedup_1 (key);

-- Under a publication FOR ALL TABLES, PostgreSQL refuses to update or delete rows of a table without
-- a replica identity.
ALTER TABLE dedup REPLICA IDENTITY FULL;
ALTER TABLE dedup_0 REPLICA IDENTITY USING INDEX dedup_0_key_idx;
ALTER TABLE dedup_1 REPLICA IDENTITY USING INDEX dedup_1_key_idx;

-- The partitions of new rows, and since when they are.
CREATE TABLE state (
    chunk_part  smallint    NOT NULL,
    chunk_since timestamptz NOT NULL,
    dedup_part  smallint    NOT NULL,
    dedup_since timestamptz NOT NULL
);
INSERT INTO state VALUES (0, clock_timestamp(), 0, clock_timestamp());
ALTER TABLE state REPLICA IDENTITY FULL;

-- put adds keys to the dedup window, and stores chunks of the deliveries whose keys are new. A
-- delivery whose key is null is always stored, and not remembered. keys and dues have an element
-- for each delivery, chunk by chunk; the other arrays have one for each chunk. An element of firsts is 0 if
-- the deliveries of the chunk get new numbers. The sender is a node.
-- It claims the chunks whose element of claims is true. Of the destinations of the other chunks,
-- put notifies all other nodes. In a transaction of a caller the sender is 0. For retries it is
-- null, and put notifies no node.
--
-- The chunks of deliveries that are ordered come first: orders has their keys, as in chunk.key, and null for the other
-- chunks. A chunk is behind if there is another one with its key, or an earlier one in the call. A
-- transaction that reads as of its beginning does not see which chunks there are now: it stores all of
-- them as behind, and has them released after its commit, of which the sender -1 notifies.
--
-- It returns how many deliveries it has stored, the places of those whose keys were not new, and for
-- each chunk whether it is behind: null or empty if there are none. Deliveries whose keys were not new
-- are marked as done in their chunk.
--
-- PutTx calls it in transactions of others. So it brings its own planner settings: the plans of
-- its statements may be older than the rows of the tables. To plan one again for each call takes longer
-- than to run it. The lock keeps the dedup
-- window from changing partitions meanwhile. A transaction that reads as of its beginning does
-- not see keys that were added since to a partition that new keys no longer go to. FOR SHARE has
-- it fail if the partitions have changed.
CREATE FUNCTION put(sender bigint, keys uuid[], destinations bytea[], retries boolean[], dues bigint[],
    counts int[], claims boolean[], reasons bytea[], firsts bigint[], lasts bigint[], accepteds bigint[], numbers text[], records bytea[],
    orders uuid[], channel text, OUT stored int, OUT known int[], OUT chunks bigint[], OUT behinds boolean[])
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    to_part smallint;
    key_part smallint;
    added uuid[];
    sees_commits boolean := current_setting('transaction_isolation') = 'read committed';
BEGIN
    LOCK TABLE ONLY dedup IN ROW EXCLUSIVE MODE;
    IF sees_commits THEN
        SELECT s.chunk_part, s.dedup_part INTO to_part, key_part FROM state s;
    ELSE
        SELECT s.chunk_part, s.dedup_part INTO to_part, key_part FROM state s FOR SHARE;
    END IF;
    IF cardinality(array_remove(keys, NULL)) > 0 THEN
        WITH inserted AS (
            INSERT INTO dedup (part, key)
            SELECT key_part, k FROM unnest(keys) k WHERE k IS NOT NULL AND NOT EXISTS (SELECT FROM dedup d WHERE d.key = k AND d.part <> key_part) ORDER BY k
            ON CONFLICT DO NOTHING RETURNING key
        )
        SELECT coalesce(array_agg(key), '{}') INTO added FROM inserted;
        IF cardinality(added) < cardinality(keys) THEN
            known := ARRAY(SELECT u.place::int FROM unnest(keys) WITH ORDINALITY u (key, place)
                WHERE u.key IS NOT NULL AND u.key NOT IN (SELECT unnest(added)));
        END IF;
    END IF;
    stored := cardinality(dues) - coalesce(cardinality(known), 0);
    IF orders[1] IS NOT NULL AND sender IS NOT NULL THEN -- retries are the first ones of their keys
        PERFORM FROM (SELECT DISTINCT stripe_of(o) AS id FROM unnest(orders) o WHERE o IS NOT NULL) o JOIN stripe s USING (id) ORDER BY s.id FOR UPDATE OF s;
        behinds := ARRAY(
            SELECT u.nth > 1 OR NOT sees_commits OR EXISTS (SELECT FROM (SELECT FROM chunk c WHERE c.key = u.key ORDER BY c.first DESC LIMIT 1) c)
            FROM (
                SELECT o.key, o.place, count(*) FILTER (WHERE known IS NULL OR o.place <> ALL (known)) OVER (PARTITION BY o.key ORDER BY o.place) AS nth
                FROM unnest(orders) WITH ORDINALITY o (key, place) WHERE o.key IS NOT NULL
            ) u ORDER BY u.place);
        IF NOT sees_commits THEN
            INSERT INTO owed SELECT DISTINCT o FROM unnest(orders) o WHERE o IS NOT NULL;
            PERFORM pg_notify(channel, '-1');
        END IF;
    END IF;
    chunks := ARRAY(SELECT nextval('ids') * 4 + to_part FROM generate_series(1, cardinality(destinations)));
    INSERT INTO chunk (part, id, destination, retry, due, node, waiting, done, reason, outbox, first, last, accepted, numbers, key, items)
    SELECT to_part, c.id, c.destination, c.retry, coalesce(k.due, dues[c.before + 1]), CASE WHEN c.behind THEN -1 WHEN c.claim THEN sender ELSE 0 END,
        coalesce(k.waiting, c.n), k.done, NULLIF(c.reason, ''), sender IS NOT DISTINCT FROM 0,
        CASE c.first WHEN 0 THEN c.id / 4 * 256 ELSE c.first END, CASE c.first WHEN 0 THEN c.id / 4 * 256 + c.n - 1 ELSE c.last END,
        c.accepted, NULLIF(c.numbers, '')::int[], c.key, c.items
    FROM (
        SELECT u.*, (sum(u.n) OVER (ORDER BY u.place) - u.n)::int AS before
        FROM unnest(chunks, destinations, retries, counts, claims, reasons, firsts, lasts, accepteds, numbers, orders, behinds, records) WITH ORDINALITY
            u (id, destination, retry, n, claim, reason, first, last, accepted, numbers, key, behind, items, place)
    ) c LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE NOT d.known) AS waiting, min(dues[d.at]) FILTER (WHERE NOT d.known) AS due,
            string_agg(d.known::int::text, '' ORDER BY d.at)::varbit AS done
        FROM (SELECT g AS at, g = ANY (known) AS known FROM generate_series(c.before + 1, c.before + c.n) g WHERE known IS NOT NULL) d
    ) k ON known IS NOT NULL
    WHERE k.waiting IS DISTINCT FROM 0;
    PERFORM pg_notify(channel, sender || ' ' || encode(n.destination, 'hex'))
    FROM (SELECT DISTINCT u.destination FROM unnest(destinations, claims, behinds) u (destination, claim, behind)
        WHERE sender IS NOT NULL AND NOT u.claim AND u.behind IS NOT TRUE) n;
END
$$;

-- settle stores which deliveries of chunks are done, and how many wait afterwards; a chunk of
-- which none waits is deleted. It changes nothing and fails unless the claimer has claimed all of
-- them, and befores are how many wait now: another settlement may have been stored without the
-- node knowing.
CREATE FUNCTION settle(claimer bigint, ids bigint[], befores int[], waitings int[], dones text[])
RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    deleted int;
    updated int;
BEGIN
    DELETE FROM chunk c USING unnest(ids, befores, waitings) u (id, before, waiting)
    WHERE u.waiting = 0 AND c.part = (u.id & 3)::smallint AND c.id = u.id AND c.node = claimer AND c.waiting = u.before;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    UPDATE chunk c SET waiting = u.waiting, done = u.done::varbit
    FROM unnest(ids, befores, waitings, dones) u (id, before, waiting, done)
    WHERE u.waiting > 0 AND c.part = (u.id & 3)::smallint AND c.id = u.id AND c.node = claimer AND c.waiting = u.before;
    GET DIAGNOSTICS updated = ROW_COUNT;
    IF deleted + updated < cardinality(ids) THEN
        RAISE EXCEPTION 'claims have ended' USING ERRCODE = 'HF001';
    END IF;
END
$$;

-- release releases the first chunk of each of keys, if it is behind. Each of afters is a number before that of
-- the chunk, so that the search need not pass rows that were deleted. The chunk is due at the time at, or
-- at its own time if that is later, or if its element of lapses is true. The sender claims it if its element of claims is true, and it is due by
-- the time soon. Of the destinations of the other chunks, release notifies all other nodes.
--
-- If another transaction has the stripe of a key, release does not wait for it, because it may be one of a
-- caller. It adds the key to owed, and returns it with the node -1. If keys is null, release is for the keys
-- in owed, and leaves there those that it cannot release.
--
-- A chunk may be moved to another partition, or be discarded, at the same time. Then release looks again.
CREATE FUNCTION release(sender bigint, keys uuid[], afters bigint[], claims boolean[], lapses boolean[], at bigint, soon bigint, channel text)
RETURNS TABLE (key uuid, id bigint, first bigint, destination bytea, retry boolean, waiting smallint, outbox boolean, due bigint, items bytea, node bigint)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    all_keys uuid[] := keys;
    parts smallint[];
    ids bigint[];
    mine boolean[];
    lapsing boolean[];
    n int;
BEGIN
    IF keys IS NULL THEN
        keys := ARRAY(SELECT o.key FROM (SELECT DISTINCT key FROM owed) o JOIN stripe s ON s.id = stripe_of(o.key) FOR UPDATE OF s SKIP LOCKED);
        DELETE FROM owed WHERE key = ANY (keys);
    ELSE
        SELECT array_agg(l.key), array_agg(l.after), array_agg(l.claim), array_agg(l.lapse) INTO keys, afters, claims, lapses FROM (
            SELECT u.* FROM unnest(keys, afters, claims, lapses) u (key, after, claim, lapse) JOIN stripe s ON s.id = stripe_of(u.key)
            FOR UPDATE OF s SKIP LOCKED
        ) l;
        IF coalesce(cardinality(keys), 0) < cardinality(all_keys) THEN
            RETURN QUERY INSERT INTO owed SELECT unnest(all_keys) EXCEPT SELECT unnest(keys)
            RETURNING owed.key, 0::bigint, 0::bigint, ''::bytea, false, 0::smallint, false, 0::bigint, ''::bytea, -1::bigint;
        END IF;
    END IF;
    LOOP
        SELECT array_agg(r.part), array_agg(r.id), array_agg(r.mine), array_agg(r.lapse) INTO parts, ids, mine, lapsing FROM (
            SELECT c.part, c.id, u.claim AND c.due <= soon AS mine, u.lapse FROM unnest(keys, afters, claims, lapses) u (key, after, claim, lapse), LATERAL (
                SELECT part, id, due, node FROM chunk WHERE key = u.key AND first > coalesce(u.after, -1) ORDER BY first LIMIT 1
            ) c WHERE c.node = -1 ORDER BY c.id
        ) r;
        EXIT WHEN ids IS NULL;
        RETURN QUERY WITH released AS (
            UPDATE chunk c SET node = CASE WHEN u.mine THEN sender ELSE 0 END, due = CASE WHEN u.lapse THEN c.due ELSE greatest(c.due, at) END
            FROM unnest(parts, ids, mine, lapsing) u (part, id, mine, lapse) WHERE c.part = u.part AND c.id = u.id AND c.node = -1
            RETURNING c.key, c.id, c.first, c.destination, c.retry, c.waiting, c.outbox, c.due, CASE WHEN u.mine THEN c.items ELSE '' END, c.node
        ), notified AS (
            SELECT pg_notify(channel, sender || ' ' || encode(d.destination, 'hex')) FROM (SELECT DISTINCT destination FROM released WHERE node = 0) d
        )
        SELECT * FROM released WHERE (SELECT count(*) FROM notified) >= 0;
        GET DIAGNOSTICS n = ROW_COUNT;
        EXIT WHEN n = cardinality(ids);
    END LOOP;
END
$$;

-- rotate_owed truncates owed once it is empty, and its deleted rows have 8 MB.
CREATE FUNCTION rotate_owed()
RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET lock_timeout = '200ms'
AS $$
BEGIN
    IF pg_relation_size('owed') >= 8 << 20 AND NOT EXISTS (SELECT FROM owed) THEN
        LOCK TABLE owed IN ACCESS EXCLUSIVE MODE;
        IF NOT EXISTS (SELECT FROM owed) THEN
            TRUNCATE owed;
        END IF;
    END IF;
END
$$;

-- rotate_dedup empties the older half of the dedup window once the newer half has max_keys / 2, or has
-- taken keys for max_age. New keys then go to the empty half. A key takes about 52 bytes in its table.
--
-- Only one of the functions that rotate runs at a time: they lock state. A put locks dedup, and
-- rotate_dedup does so in a mode that excludes puts. So no put looks up keys before the rotation and then
-- adds them after it. Advisory locks would not do, because every role of the database can take them. A
-- function that waits for a lock gives up soon, because other transactions queue up behind it.
CREATE FUNCTION rotate_dedup(at timestamptz, max_keys bigint, max_age interval)
RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET lock_timeout = '200ms'
AS $$
DECLARE
    other smallint;
BEGIN
    LOCK TABLE state IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT 1 - dedup_part INTO other FROM state, pg_relation_size(('dedup_' || dedup_part)::regclass) size
    WHERE size > 0 AND (size / 52 >= max_keys / 2 OR dedup_since <= at - max_age);
    IF FOUND THEN
        LOCK TABLE ONLY dedup IN SHARE ROW EXCLUSIVE MODE;
        EXECUTE 'TRUNCATE dedup_' || other;
        UPDATE state SET dedup_part = other, dedup_since = at;
    END IF;
END
$$;

-- rotate_chunks directs new chunks to an empty partition once the current one has 256 MB, or 8 MB
-- and is in use for ten minutes. It truncates other partitions that are empty, and moves the chunks
-- of nearly empty ones to the current one. It leaves partitions of less than 8 MB alone. If all
-- partitions hold a backlog, only vacuum removes finished chunks.
CREATE FUNCTION rotate_chunks(at timestamptz)
RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET lock_timeout = '200ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    small CONSTANT bigint := 8 << 20;
    few CONSTANT int := 20000; -- chunks of a nearly empty partition
    to_part smallint;
    is_full boolean;
    p smallint;
    size bigint;
    chunks bigint; -- up to few
    live bigint; -- their bytes
BEGIN
    LOCK TABLE state IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT chunk_part, t.size >= 256 << 20 OR t.size >= small AND chunk_since <= at - interval '10 minutes' INTO to_part, is_full
    FROM state, pg_total_relation_size(('chunk_' || chunk_part)::regclass) t (size);
    FOR p IN SELECT (to_part + i) % 4 FROM generate_series(1, 3) i LOOP
        size := pg_total_relation_size(('chunk_' || p)::regclass);
        SELECT count(*), coalesce(sum(octet_length(c.items)), 0) INTO chunks, live
        FROM (SELECT items FROM chunk WHERE part = p ORDER BY id LIMIT few) c;
        IF chunks = 0 AND size >= small THEN
            EXECUTE format('LOCK TABLE chunk_%s IN ACCESS EXCLUSIVE MODE', p);
            IF NOT EXISTS (SELECT FROM chunk WHERE part = p) THEN
                EXECUTE format('TRUNCATE chunk_%s', p);
            END IF;
            RETURN; -- ends the transaction, and so the lock
        ELSIF chunks = 0 AND is_full THEN
            UPDATE state SET chunk_part = p, chunk_since = at;
            RETURN;
        ELSIF chunks < few AND size >= small AND live < size / 8 THEN
            -- An UPDATE of part, the partition key, would make concurrent statements that lock these
            -- rows fail.
            WITH moved AS (
                DELETE FROM chunk WHERE part = p AND id IN (
                    SELECT id FROM chunk WHERE part = p AND node <= 0 LIMIT 1000 FOR UPDATE SKIP LOCKED
                ) RETURNING *
            )
            INSERT INTO chunk (part, id, destination, retry, due, node, waiting, done, reason, outbox, first, last, accepted, numbers, key, items)
            SELECT to_part, nextval('ids') * 4 + to_part, destination, retry, due, node, waiting, done, reason, outbox, first, last,
                accepted, numbers, key, items FROM moved;
        END IF;
    END LOOP;
END
$$;

CREATE TABLE dead (
    seq         bigint PRIMARY KEY, -- the number of the delivery
    destination bytea  NOT NULL,
    accepted    bigint NOT NULL,
    died        bigint NOT NULL,
    size        bigint NOT NULL, -- in bytes
    type        bytea  NOT NULL,
    reason      bytea  NOT NULL,
    user_id     bytea  NOT NULL,
    keys        int[]  NOT NULL, -- hashes of its ids and of its user
    record      bytea  NOT NULL  -- a store.Record
);
CREATE INDEX dead_destination ON dead (destination, seq);
CREATE INDEX dead_keys ON dead USING gin (keys) WITH (gin_pending_list_limit = 256);

-- The history. A row has up to 256 deliveries to one destination that were settled together. New rows go
-- to one partition of eight, for a seventh of the age to which deliveries are kept, or until it has an
-- eighth of the bytes. Then they go to the next one, which is truncated before. Nothing is left to vacuum.
CREATE TABLE kept (
    part        smallint NOT NULL,
    first       bigint   NOT NULL, -- as in chunk
    last        bigint   NOT NULL,
    accepted    bigint   NOT NULL,
    destination bytea    NOT NULL,
    n           int      NOT NULL, -- how many deliveries
    size        bigint   NOT NULL, -- the sum of their sizes, in bytes
    numbers     int[],             -- as in chunk
    keys        int[]    NOT NULL, -- hashes of their ids and users
    items       bytea    NOT NULL, -- the deliveries, by their numbers, compressed
    PRIMARY KEY (last, first, part)
) PARTITION BY LIST (part);

ALTER TABLE kept ALTER items SET STORAGE EXTERNAL, ALTER numbers SET STORAGE MAIN, ALTER keys SET STORAGE MAIN;
CREATE TABLE kept_0 PARTITION OF kept FOR VALUES IN (0);
CREATE TABLE kept_1 PARTITION OF kept FOR VALUES IN (1);
CREATE TABLE kept_2 PARTITION OF kept FOR VALUES IN (2);
CREATE TABLE kept_3 PARTITION OF kept FOR VALUES IN (3);
CREATE TABLE kept_4 PARTITION OF kept FOR VALUES IN (4);
CREATE TABLE kept_5 PARTITION OF kept FOR VALUES IN (5);
CREATE TABLE kept_6 PARTITION OF kept FOR VALUES IN (6);
CREATE TABLE kept_7 PARTITION OF kept FOR VALUES IN (7);

CREATE INDEX kept_destination ON kept (destination, last, first);
CREATE INDEX kept_keys ON kept USING gin (keys) WITH (gin_pending_list_limit = 256);

-- The partitions of the history. The latest one takes new rows. n and size are the sums of a partition that
-- takes none any more; null: not added up yet.
CREATE TABLE ring (
    part  smallint    PRIMARY KEY,
    since timestamptz NOT NULL,
    age   interval, -- to which deliveries are kept; null: none ever was
    n     bigint,
    size  bigint
);
INSERT INTO ring SELECT p, CASE p WHEN 0 THEN clock_timestamp() ELSE 'epoch' END, NULL, NULLIF(0, p), NULLIF(0, p) FROM generate_series(0, 7) p;

-- keep adds rows to the history. It returns how many deliveries it could not keep. It never fails, so that
-- a settlement does not fail with it. The lock keeps new rows out of a partition that is not the latest.
CREATE FUNCTION keep(destinations bytea[], firsts bigint[], lasts bigint[], accepteds bigint[], counts int[], sizes bigint[],
    numbers text[], keys text[], records bytea[])
RETURNS int LANGUAGE plpgsql
SET search_path FROM CURRENT SET lock_timeout = '200ms' SET jit = off
AS $$
BEGIN
    LOCK TABLE ring IN ROW EXCLUSIVE MODE;
    INSERT INTO kept (part, destination, first, last, accepted, n, size, numbers, keys, items)
    SELECT (SELECT r.part FROM ring r ORDER BY r.since DESC LIMIT 1), u.destination, u.first, u.last, u.accepted, u.n, u.size,
        NULLIF(u.numbers, '')::int[], u.keys::int[], u.items
    FROM unnest(destinations, firsts, lasts, accepteds, counts, sizes, numbers, keys, records)
        u (destination, first, last, accepted, n, size, numbers, keys, items);
    RETURN 0;
EXCEPTION WHEN OTHERS THEN
    RETURN (SELECT sum(n) FROM unnest(counts) n);
END
$$;

-- rotate_kept truncates the oldest partition of the history once the latest one is old or large enough, and
-- directs new rows to it when it is called again. Nobody waits for the first step but those who read old
-- deliveries. A node without a history passes null, so that what was kept before is removed in time.
CREATE FUNCTION rotate_kept(at timestamptz, max_age interval, max_bytes bigint)
RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET lock_timeout = '200ms'
AS $$
DECLARE
    latest smallint;
    oldest smallint;
BEGIN
    LOCK TABLE state IN SHARE UPDATE EXCLUSIVE MODE;
    UPDATE ring SET age = max_age WHERE age IS DISTINCT FROM coalesce(max_age, age);
    UPDATE ring r SET (n, size) = (SELECT coalesce(sum(k.n), 0), coalesce(sum(k.size), 0) FROM kept k WHERE k.part = r.part)
    WHERE r.n IS NULL AND r.since < (SELECT max(since) FROM ring);
    SELECT r.part, (r.part + 1) % 8 INTO latest, oldest FROM ring r
    WHERE r.since = (SELECT max(since) FROM ring)
        AND (r.since <= at - r.age / 7 OR pg_total_relation_size(('kept_' || r.part)::regclass) >= max_bytes / 8);
    IF latest IS NULL THEN
        RETURN;
    ELSIF pg_relation_size(('kept_' || oldest)::regclass) > 0 THEN
        EXECUTE 'TRUNCATE kept_' || oldest;
        UPDATE ring SET n = 0, size = 0 WHERE part = oldest;
    ELSE
        LOCK TABLE ring IN SHARE ROW EXCLUSIVE MODE;
        UPDATE ring SET since = at, n = NULL, size = NULL WHERE part = oldest;
    END IF;
END
$$;

-- seek returns where a list may begin that wants only deliveries accepted before a time or, if is_oldest
-- is set, since then. All deliveries before that number are not wanted. No delivery was accepted by more
-- than skew earlier than one with a smaller number. It tries each half of the numbers that are left.
CREATE FUNCTION seek(at bigint, skew bigint, is_oldest boolean)
RETURNS bigint LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    low bigint := 0;
    high bigint := (SELECT last_value * 256 + 256 FROM ids);
    result bigint := CASE WHEN is_oldest THEN low ELSE high END;
    middle bigint;
    r record;
BEGIN
    WHILE low < high LOOP
        middle := (low + high) / 2;
        SELECT n.first, n.last, n.accepted INTO r FROM (
            (SELECT c.first, c.last, c.accepted FROM chunk c WHERE c.last > middle ORDER BY c.last LIMIT 1)
            UNION ALL
            (SELECT d.seq, d.seq, d.accepted FROM dead d WHERE d.seq > middle ORDER BY d.seq LIMIT 1)
            UNION ALL
            (SELECT k.first, k.last, k.accepted FROM kept k WHERE k.last > middle ORDER BY k.last LIMIT 1)
        ) n ORDER BY n.last LIMIT 1;
        IF NOT FOUND THEN
            high := middle;
        ELSIF is_oldest AND r.accepted < at - skew THEN
            result := greatest(result, r.first - 1);
            low := r.last;
        ELSIF is_oldest OR r.accepted > at + skew THEN
            result := CASE WHEN is_oldest THEN result ELSE r.last + 1 END;
            high := middle;
        ELSE
            low := r.last;
        END IF;
    END LOOP;
    RETURN result;
END
$$;

CREATE TABLE audience (
    id     bytea PRIMARY KEY,
    record bytea NOT NULL DEFAULT '' -- an audience.Record
);

CREATE TABLE member (
    audience   bytea  NOT NULL,
    member     bytea  NOT NULL,
    generation bigint NOT NULL, -- of the announcement that it was in last
    PRIMARY KEY (audience, member)
);

-- The views are for people: what waits, for whom and why, and what was given up. A row of
-- waiting is a chunk; reason is why its first delivery failed last.
CREATE VIEW waiting AS
SELECT encode(c.destination, 'escape') AS destination, c.waiting AS deliveries,
    CASE WHEN c.retry THEN 'retry' ELSE 'fresh' END AS queue,
    to_timestamp(c.due / 1e6) AS due,
    CASE WHEN c.node > 0 THEN 'claimed'
        WHEN c.node < 0 THEN 'behind'
        WHEN EXISTS (SELECT FROM document d WHERE d.folder = 'pause' AND d.name = c.destination AND d.value IS NOT NULL) THEN 'paused'
        WHEN to_timestamp(c.due / 1e6) > clock_timestamp() THEN 'not due yet'
        ELSE 'due' END AS state,
    n.name AS node, encode(c.reason, 'escape') AS reason, c.part, c.id AS chunk
FROM chunk c LEFT JOIN node n ON n.id = c.node;

CREATE VIEW dead_letters AS
SELECT encode(destination, 'escape') AS destination, to_timestamp(died / 1e6) AS died, encode(reason, 'escape') AS reason,
    encode(type, 'escape') AS type, encode(user_id, 'escape') AS user_id, size, to_timestamp(accepted / 1e6) AS accepted, seq
FROM dead;
