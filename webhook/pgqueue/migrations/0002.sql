-- Under a publication FOR ALL TABLES, PostgreSQL refuses to update or delete rows of a table without
-- a replica identity. A generated column cannot be part of one, and key of dead is generated.
ALTER TABLE version ADD PRIMARY KEY (number);
ALTER TABLE state REPLICA IDENTITY FULL;
ALTER TABLE dedup REPLICA IDENTITY FULL;
ALTER TABLE dedup_0 REPLICA IDENTITY USING INDEX dedup_0_key_idx;
ALTER TABLE dedup_1 REPLICA IDENTITY USING INDEX dedup_1_key_idx;
CREATE UNIQUE INDEX dead_id ON dead (id);
ALTER TABLE dead REPLICA IDENTITY USING INDEX dead_id;

-- A chunk that is moved to another partition gets another id. A list finds it by the id from before.
ALTER TABLE chunk ADD origin bigint; -- the id that it had at first; null if it was not moved
CREATE INDEX chunk_origin ON chunk (origin) WHERE origin IS NOT NULL;

-- These functions lock tables where they had advisory locks, which every role of the database can
-- take. A role needs rights on a table to lock it. Only one of the two functions that rotate runs at a
-- time: they lock state. A put locks dedup, and rotate_dedup does so in a mode that excludes puts.
-- Programs of version 1 still pass lock_key, which is not used.
CREATE OR REPLACE FUNCTION put(lock_key bigint, sender bigint, keys uuid[], destinations bytea[], retries boolean[], dues bigint[],
    counts int[], claims boolean[], reasons bytea[], records bytea[], channel text,
    OUT stored int, OUT known int[], OUT chunks bigint[])
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    to_part smallint;
    key_part smallint;
    added uuid[];
BEGIN
    LOCK TABLE ONLY dedup IN ROW EXCLUSIVE MODE;
    IF current_setting('transaction_isolation') = 'read committed' THEN
        SELECT s.chunk_part, s.dedup_part INTO to_part, key_part FROM state s;
    ELSE
        SELECT s.chunk_part, s.dedup_part INTO to_part, key_part FROM state s FOR SHARE;
    END IF;
    IF cardinality(array_remove(keys, NULL)) > 0 THEN
        WITH inserted AS (
            INSERT INTO dedup (part, key)
            SELECT key_part, k FROM unnest(keys) k WHERE k IS NOT NULL AND NOT EXISTS (SELECT FROM dedup d WHERE d.key = k) ORDER BY k
            ON CONFLICT DO NOTHING RETURNING key
        )
        SELECT coalesce(array_agg(key), '{}') INTO added FROM inserted;
        IF cardinality(added) < cardinality(keys) THEN
            known := ARRAY(SELECT u.place::int FROM unnest(keys) WITH ORDINALITY u (key, place)
                WHERE u.key IS NOT NULL AND u.key NOT IN (SELECT unnest(added)));
        END IF;
    END IF;
    stored := cardinality(dues) - coalesce(cardinality(known), 0);
    chunks := ARRAY(SELECT nextval('ids') * 4 + to_part FROM generate_series(1, cardinality(destinations)));
    INSERT INTO chunk (part, id, destination, retry, due, node, waiting, done, reason, outbox, items)
    SELECT to_part, c.id, c.destination, c.retry, coalesce(k.due, dues[c.before + 1]), CASE WHEN c.claim THEN sender ELSE 0 END,
        coalesce(k.waiting, c.n), k.done, NULLIF(c.reason, ''), sender IS NOT DISTINCT FROM 0, c.items
    FROM (
        SELECT u.*, (sum(u.n) OVER (ORDER BY u.place) - u.n)::int AS before
        FROM unnest(chunks, destinations, retries, counts, claims, reasons, records) WITH ORDINALITY
            u (id, destination, retry, n, claim, reason, items, place)
    ) c LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE NOT d.known) AS waiting, min(dues[d.at]) FILTER (WHERE NOT d.known) AS due,
            string_agg(d.known::int::text, '' ORDER BY d.at)::varbit AS done
        FROM (SELECT g AS at, g = ANY (known) AS known FROM generate_series(c.before + 1, c.before + c.n) g) d
    ) k ON known IS NOT NULL
    WHERE k.waiting IS DISTINCT FROM 0;
    PERFORM pg_notify(channel, sender || ' ' || encode(n.destination, 'hex'))
    FROM (SELECT DISTINCT u.destination FROM unnest(destinations, claims) u (destination, claim) WHERE sender IS NOT NULL AND NOT u.claim) n;
END
$$;

CREATE OR REPLACE FUNCTION rotate_dedup(lock_key bigint, at timestamptz, max_keys bigint, max_age interval)
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

CREATE OR REPLACE FUNCTION rotate_chunks(lock_key bigint, at timestamptz)
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
                    SELECT id FROM chunk WHERE part = p AND node = 0 LIMIT 1000 FOR UPDATE SKIP LOCKED
                ) RETURNING *
            )
            INSERT INTO chunk (part, id, destination, retry, due, node, waiting, done, reason, outbox, items, origin)
            SELECT to_part, nextval('ids') * 4 + to_part, destination, retry, due, node, waiting, done, reason, outbox, items,
                coalesce(origin, id) FROM moved;
        END IF;
    END LOOP;
END
$$;
