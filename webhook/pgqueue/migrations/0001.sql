-- Names without a schema are found by search_path, which is set to the schema.
-- Ids and names of destinations and users may have any bytes, and so are bytea.

CREATE SEQUENCE ids;

-- A node is a Store that is open. Others leave alone what it has claimed until it
-- expires.
CREATE TABLE node (
    id      bigint PRIMARY KEY,
    name    text NOT NULL,
    opened  timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen    timestamptz NOT NULL DEFAULT clock_timestamp(),
    steady  timestamptz NOT NULL DEFAULT clock_timestamp(), -- since when no heartbeat was late
    expires timestamptz NOT NULL,
    note    bytea -- what it presents
);

-- A setting is a small document, such as a pause.
CREATE TABLE setting (
    name    bytea PRIMARY KEY,
    value   bytea NOT NULL,
    version bigint NOT NULL -- from ids
);

-- A chunk is up to 256 deliveries to one destination, all fresh or all retries. A chunk
-- that is done is deleted. So that vacuum has nothing to do, chunks are kept on shelves:
-- partitions that are used in turn, and truncated when they are empty.
CREATE TABLE chunk (
    shelf       smallint NOT NULL,
    id          bigint   NOT NULL, -- from ids
    destination bytea    NOT NULL,
    retry       boolean  NOT NULL,
    due         bigint   NOT NULL, -- microseconds since 1970: of the first that is not done
    node        bigint   NOT NULL, -- which has claimed it; 0: none
    held        smallint NOT NULL, -- how many deliveries are not done
    done        varbit,            -- a bit for each delivery; null: none is done
    why         text,              -- why the first of them failed last
    outbox      boolean  NOT NULL, -- was put in a transaction of a user, and claimed by no node yet
    items       bytea    NOT NULL, -- the deliveries, in the order they are due
    PRIMARY KEY (shelf, id)
) PARTITION BY LIST (shelf);

ALTER TABLE chunk ALTER items SET STORAGE EXTERNAL;

CREATE TABLE chunk_0 PARTITION OF chunk FOR VALUES IN (0);
CREATE TABLE chunk_1 PARTITION OF chunk FOR VALUES IN (1);
CREATE TABLE chunk_2 PARTITION OF chunk FOR VALUES IN (2);
CREATE TABLE chunk_3 PARTITION OF chunk FOR VALUES IN (3);

CREATE INDEX chunk_due ON chunk (destination, retry, due, id) WHERE node = 0;
CREATE INDEX chunk_node ON chunk (node) WHERE node <> 0;

-- What was put before, by the first 128 bits of a SHA-256: of the present generation and
-- of the one before. Generation n is in slot n % 2.
CREATE TABLE seen (
    slot smallint NOT NULL,
    key  uuid     NOT NULL
) PARTITION BY LIST (slot);

CREATE TABLE seen_0 PARTITION OF seen FOR VALUES IN (0);
CREATE TABLE seen_1 PARTITION OF seen FOR VALUES IN (1);
CREATE UNIQUE INDEX ON seen_0 (key);
CREATE UNIQUE INDEX ON seen_1 (key);

CREATE TABLE state (
    shelf      smallint    NOT NULL, -- where new chunks go
    shelved    timestamptz NOT NULL, -- since when
    generation bigint      NOT NULL, -- of new keys
    began      timestamptz NOT NULL  -- since when
);
INSERT INTO state VALUES (0, clock_timestamp(), 0, clock_timestamp());

-- put remembers new_keys, and stores chunks of the deliveries whose keys were not known: of
-- all, without keys. The keys and dues are those of the deliveries, chunk by chunk. A delivery
-- whose key is null is not remembered. It returns how many keys were not known, and the places
-- of those that were: null if none was. Their deliveries are stored as done. A chunk that is
-- mine is claimed by the node.
--
-- Transactions of others call it, too: it finds by index whatever they have set, and
-- whatever was known of the tables when its statements were planned. A transaction that
-- reads as of its beginning has to be tried again if the generation has changed since: it
-- does not see what others added to the older one.
CREATE FUNCTION put(lock_key bigint, claimer bigint, new_keys uuid[], destinations bytea[], retries boolean[], dues bigint[],
    counts int[], mine boolean[], whys text[], records bytea[], outbox boolean, channel text, told text,
    OUT stored int, OUT known int[], OUT to_shelf smallint, OUT chunks bigint[])
LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    to_slot smallint;
    fresh uuid[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(lock_key);
    IF current_setting('transaction_isolation') = 'read committed' THEN
        SELECT s.shelf, s.generation % 2 INTO to_shelf, to_slot FROM state s;
    ELSE
        SELECT s.shelf, s.generation % 2 INTO to_shelf, to_slot FROM state s FOR SHARE;
    END IF;
    IF cardinality(new_keys) > 0 THEN
        WITH added AS (
            INSERT INTO seen (slot, key)
            SELECT to_slot, k FROM unnest(new_keys) k WHERE k IS NOT NULL AND NOT EXISTS (SELECT FROM seen o WHERE o.key = k) ORDER BY k
            ON CONFLICT DO NOTHING RETURNING key
        )
        SELECT coalesce(array_agg(key), '{}') INTO fresh FROM added;
        stored := cardinality(fresh);
        IF stored < cardinality(new_keys) THEN
            known := ARRAY(SELECT u.place::int FROM unnest(new_keys) WITH ORDINALITY u (key, place) WHERE u.key NOT IN (SELECT unnest(fresh)));
        END IF;
    END IF;
    chunks := ARRAY(SELECT nextval('ids') FROM generate_series(1, cardinality(destinations)));
    INSERT INTO chunk (shelf, id, destination, retry, due, node, held, done, why, outbox, items)
    SELECT to_shelf, c.id, c.destination, c.retry, coalesce(k.due, dues[c.before + 1]), CASE WHEN c.mine THEN claimer ELSE 0 END,
        coalesce(k.held, c.n), k.done, c.why, put.outbox, c.items
    FROM (
        SELECT u.*, (sum(u.n) OVER (ORDER BY u.place) - u.n)::int AS before
        FROM unnest(chunks, destinations, retries, counts, mine, whys, records) WITH ORDINALITY
            u (id, destination, retry, n, mine, why, items, place)
    ) c LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE NOT d.known) AS held, min(dues[d.at]) FILTER (WHERE NOT d.known) AS due,
            string_agg(d.known::int::text, '' ORDER BY d.at)::varbit AS done
        FROM (SELECT g AS at, g = ANY (known) AS known FROM generate_series(c.before + 1, c.before + c.n) g) d
    ) k ON known IS NOT NULL
    WHERE k.held IS DISTINCT FROM 0;
    IF told <> '' THEN
        PERFORM pg_notify(channel, told);
    END IF;
END
$$;

-- settle stores how many deliveries of chunks are held, of befores, and which are done. It
-- changes nothing, and fails, unless the node has claimed all of them.
CREATE FUNCTION settle(claimer bigint, shelves smallint[], ids bigint[], befores int[], helds int[], dones text[])
RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    deleted int;
    updated int;
BEGIN
    DELETE FROM chunk c USING unnest(shelves, ids, befores, helds) u (shelf, id, before, held)
    WHERE u.held = 0 AND c.shelf = u.shelf AND c.id = u.id AND c.node = claimer AND c.held = u.before;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    UPDATE chunk c SET held = u.held, done = u.done::varbit
    FROM unnest(shelves, ids, befores, helds, dones) u (shelf, id, before, held, done)
    WHERE u.held > 0 AND c.shelf = u.shelf AND c.id = u.id AND c.node = claimer AND c.held = u.before;
    GET DIAGNOSTICS updated = ROW_COUNT;
    IF deleted + updated < cardinality(ids) THEN
        RAISE EXCEPTION 'claims have ended' USING ERRCODE = 'HF001';
    END IF;
END
$$;

CREATE TABLE dead (
    died        bigint NOT NULL, -- microseconds since 1970
    id          bigint NOT NULL, -- from ids
    destination bytea  NOT NULL,
    type        bytea  NOT NULL,
    reason      bytea  NOT NULL,
    user_id     bytea  NOT NULL,
    size        bigint NOT NULL,
    record      bytea  NOT NULL,
    PRIMARY KEY (died, id)
);

CREATE INDEX dead_destination ON dead (destination, died, id);
CREATE INDEX dead_user ON dead (user_id) WHERE user_id <> '';

CREATE TABLE audience (
    id     bytea PRIMARY KEY,
    record bytea NOT NULL DEFAULT '' -- an audience.Record
);

CREATE TABLE member (
    audience   bytea  NOT NULL,
    member     bytea  NOT NULL,
    generation bigint NOT NULL,
    PRIMARY KEY (audience, member)
);

-- The views are for people: what waits, for whom and why, and what was given up. reason
-- is that of the last failure of the first delivery of a chunk.
CREATE VIEW waiting AS
SELECT encode(c.destination, 'escape') AS destination, c.held AS deliveries,
    CASE WHEN c.retry THEN 'retry' ELSE 'fresh' END AS queue,
    to_timestamp(c.due / 1e6) AS due,
    CASE WHEN c.node <> 0 THEN 'claimed'
        WHEN EXISTS (SELECT FROM setting s WHERE s.name = 'pause/'::bytea || c.destination) THEN 'paused'
        WHEN to_timestamp(c.due / 1e6) > clock_timestamp() THEN 'not due yet'
        ELSE 'due' END AS state,
    n.name AS node, c.why AS reason, c.shelf, c.id AS chunk
FROM chunk c LEFT JOIN node n ON n.id = c.node;

CREATE VIEW dead_letters AS
SELECT encode(destination, 'escape') AS destination, to_timestamp(died / 1e6) AS died, encode(reason, 'escape') AS reason,
    encode(type, 'escape') AS type, encode(user_id, 'escape') AS user_id, size,
    lpad(to_hex(died), 16, '0') || lpad(to_hex(id), 16, '0') AS key
FROM dead;
