-- Names without a schema are found by search_path, which is set to the schema.

-- Each value stands for itself and the 255 after it.
CREATE SEQUENCE ids INCREMENT BY 256;

-- A node is a Queue that is open. What it has claimed is its own until it
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

CREATE TABLE paused (
    destination bytea PRIMARY KEY,
    since       timestamptz NOT NULL
);

-- A chunk is up to 256 deliveries to one destination. Finished ones are deleted; so
-- that nothing has to be vacuumed, they are kept on shelves that are used in
-- turn and truncated when they are empty.
CREATE TABLE chunk (
    shelf       smallint NOT NULL,
    id          bigint   NOT NULL, -- from ids
    destination bytea    NOT NULL,
    due         bigint   NOT NULL, -- microseconds since 1970: of the first of items
    node        bigint   NOT NULL, -- who has claimed it; 0: nobody
    held        smallint NOT NULL, -- how many deliveries are not done
    done        bytea,             -- a bit for each that is, once one is
    items       bytea    NOT NULL, -- their records, each after its length
    PRIMARY KEY (shelf, id)
) PARTITION BY LIST (shelf);

ALTER TABLE chunk ALTER items SET STORAGE EXTERNAL;

CREATE TABLE chunk_0 PARTITION OF chunk FOR VALUES IN (0);
CREATE TABLE chunk_1 PARTITION OF chunk FOR VALUES IN (1);
CREATE TABLE chunk_2 PARTITION OF chunk FOR VALUES IN (2);
CREATE TABLE chunk_3 PARTITION OF chunk FOR VALUES IN (3);

CREATE INDEX chunk_due ON chunk (destination, due, id) WHERE node = 0;
CREATE INDEX chunk_node ON chunk (node) WHERE node <> 0;

-- What was put before, by the first 128 bits of a SHA-256, in generations: generation
-- n is in table n % 8. Keys are added to the newest alone; seen has all.
CREATE TABLE seen_0 (key uuid PRIMARY KEY);
CREATE TABLE seen_1 (key uuid PRIMARY KEY);
CREATE TABLE seen_2 (key uuid PRIMARY KEY);
CREATE TABLE seen_3 (key uuid PRIMARY KEY);
CREATE TABLE seen_4 (key uuid PRIMARY KEY);
CREATE TABLE seen_5 (key uuid PRIMARY KEY);
CREATE TABLE seen_6 (key uuid PRIMARY KEY);
CREATE TABLE seen_7 (key uuid PRIMARY KEY);

CREATE VIEW seen AS
    SELECT key FROM seen_0 UNION ALL SELECT key FROM seen_1 UNION ALL
    SELECT key FROM seen_2 UNION ALL SELECT key FROM seen_3 UNION ALL
    SELECT key FROM seen_4 UNION ALL SELECT key FROM seen_5 UNION ALL
    SELECT key FROM seen_6 UNION ALL SELECT key FROM seen_7;

CREATE TABLE state (
    shelf      smallint    NOT NULL, -- where new chunks go
    shelved    timestamptz NOT NULL, -- since when
    generation bigint      NOT NULL, -- of new keys
    began      timestamptz NOT NULL  -- since when
);
INSERT INTO state VALUES (0, clock_timestamp(), 0, clock_timestamp());

-- put_all_n is for the generations in table n. It remembers keys, which no older one
-- knows, and suspects, which one may know, and returns those that were not known. If
-- none was, it stores the chunks too, and notifies. If the generation is another by
-- now, it returns a null, and has done nothing. It is for transactions of others: it
-- finds by index whatever they have set, and whatever was known of the tables when its
-- statements were planned. A transaction that reads as of its beginning has to be tried
-- again if the generation has changed since: it does not see what others added to the
-- older one.
DO $do$
BEGIN
    FOR n IN 0..7 LOOP
        EXECUTE format($create$
CREATE FUNCTION put_all_%1$s(generations bigint, generation bigint, keys uuid[], suspects uuid[], shelf smallint, destinations bytea[], dues bigint[], held bigint[], items bytea[], channel text, told text)
RETURNS SETOF uuid LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    newest bigint;
    unknown uuid[] := keys;
    fresh uuid[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(generations);
    IF current_setting('transaction_isolation') = 'read committed' THEN
        SELECT s.generation INTO newest FROM state s;
    ELSE
        SELECT s.generation INTO newest FROM state s FOR SHARE;
    END IF;
    IF newest <> put_all_%1$s.generation THEN
        RETURN NEXT NULL;
        RETURN;
    END IF;
    IF cardinality(suspects) > 0 THEN -- which takes twice as long, whether one is known or not
        SELECT keys || coalesce(array_agg(k), '{}') INTO unknown
        FROM unnest(suspects) k WHERE NOT EXISTS (SELECT FROM seen o WHERE o.key = k);
    END IF;
    WITH added AS (
        INSERT INTO seen_%1$s SELECT k FROM unnest(unknown) k ORDER BY k
        ON CONFLICT DO NOTHING RETURNING key
    ) SELECT array_agg(key) INTO fresh FROM added;
    IF cardinality(fresh) = cardinality(keys) + cardinality(suspects) THEN
        INSERT INTO chunk (shelf, id, destination, due, node, held, items)
        SELECT put_all_%1$s.shelf, nextval('ids'), c.destination, c.due, 0, c.held, c.items
        FROM unnest(destinations, dues, put_all_%1$s.held, put_all_%1$s.items) c (destination, due, held, items);
        PERFORM pg_notify(channel, told);
    END IF;
    RETURN QUERY SELECT unnest(fresh);
END
$$
        $create$, n);
    END LOOP;
END
$do$;

CREATE SEQUENCE deaths;

CREATE TABLE dead (
    died        bigint NOT NULL, -- microseconds since 1970
    id          bigint NOT NULL, -- from deaths
    destination bytea  NOT NULL,
    type        bytea  NOT NULL,
    reason      bytea  NOT NULL,
    record      bytea  NOT NULL,
    PRIMARY KEY (died, id)
);

CREATE INDEX dead_destination ON dead (destination, died, id);

CREATE TABLE audience (
    name       bytea PRIMARY KEY,
    generation bigint NOT NULL
);

CREATE TABLE member (
    audience   bytea  NOT NULL,
    member     bytea  NOT NULL,
    generation bigint NOT NULL,
    PRIMARY KEY (audience, member)
);
