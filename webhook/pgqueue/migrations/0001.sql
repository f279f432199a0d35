-- Names without a schema are found by search_path, which is set to the schema.

-- Each value stands for itself and the 255 after it.
CREATE SEQUENCE ids INCREMENT BY 256;

-- A node is a Queue that is open. What it has claimed is its own until it
-- expires.
CREATE TABLE node (
    id      bigint PRIMARY KEY,
    name    text NOT NULL,
    expires timestamptz NOT NULL
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

-- What was put before, by the first 128 bits of a SHA-256, in two generations.
CREATE TABLE seen (
    generation smallint NOT NULL,
    key        uuid     NOT NULL,
    PRIMARY KEY (generation, key)
) PARTITION BY LIST (generation);

CREATE TABLE seen_0 PARTITION OF seen FOR VALUES IN (0);
CREATE TABLE seen_1 PARTITION OF seen FOR VALUES IN (1);

CREATE TABLE state (
    shelf      smallint    NOT NULL, -- where new chunks go
    shelved    timestamptz NOT NULL, -- since when
    generation smallint    NOT NULL, -- of new keys
    began      timestamptz NOT NULL  -- since when
);
INSERT INTO state VALUES (0, clock_timestamp(), 0, clock_timestamp());

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
