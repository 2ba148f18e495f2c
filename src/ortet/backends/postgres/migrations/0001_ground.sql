-- The catalog in PostgreSQL: heads, the log of their moves, leases, records, timelines and events.
-- Everything lies in one schema, which is the only one on the search path of our connections.

CREATE TABLE heads (
    name    text COLLATE "C" PRIMARY KEY,
    oid     bytea NOT NULL,
    version bigint NOT NULL,
    time    bigint NOT NULL
) WITH (fillfactor = 80);

CREATE TABLE ops (
    seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    time   bigint NOT NULL,
    verb   text NOT NULL,
    name   text COLLATE "C" NOT NULL,
    old    bytea,
    new    bytea,
    actor  text NOT NULL,
    detail text NOT NULL
);

CREATE INDEX ops_by_name ON ops (name, seq);

-- A fence comes from a sequence, so it is higher than any before, of whatever lease.
CREATE TABLE leases (
    name    text COLLATE "C" PRIMARY KEY,
    owner   text NOT NULL,
    fence   bigint NOT NULL,
    expires bigint NOT NULL
) WITH (fillfactor = 70);

CREATE SEQUENCE fences;

CREATE TABLE records (
    kind    text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    value   bytea NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (kind, key)
) WITH (fillfactor = 80);

-- The greatest version that was ever removed, as in SQLite; and the epoch of the last sweep.
CREATE TABLE floors (
    "of"  text PRIMARY KEY,
    value bigint NOT NULL
);

INSERT INTO floors VALUES ('head', 0), ('row', 0), ('epoch', 0);

-- The last write of each writer: one whose answer was lost asks again, and is not done twice.
CREATE TABLE writers (
    slot    bytea PRIMARY KEY,
    request bigint NOT NULL,
    time    timestamptz NOT NULL
) WITH (fillfactor = 50);

-- `last` is what an append compares and sets: no index over all partitions could keep seqs unique.
CREATE TABLE timelines (
    id     uuid PRIMARY KEY,
    parent uuid,
    at     bigint NOT NULL,
    last   bigint NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX timelines_by_parent ON timelines (parent, id) WHERE parent IS NOT NULL;

-- `made` is the database's time, and says only in which partition a row lies.
CREATE TABLE events (
    timeline uuid NOT NULL,
    seq      bigint NOT NULL,
    made     timestamptz NOT NULL,
    head     bytea NOT NULL,
    salt     bytea,
    body     bytea,
    PRIMARY KEY (timeline, seq, made)
) PARTITION BY RANGE (made);

ALTER TABLE events ALTER body SET STORAGE EXTERNAL; -- it comes compressed
