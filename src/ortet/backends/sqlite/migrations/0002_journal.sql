-- Timelines and their events. Ids are the 16 bytes that their 32 hexadecimal digits mean.

CREATE TABLE timelines (
    id     BLOB PRIMARY KEY,
    parent BLOB,
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX timelines_by_parent ON timelines (parent, id) WHERE parent IS NOT NULL;

-- `salt` and `body` are NULL when they were erased: the chain of heads stays whole without them.
CREATE TABLE events (
    timeline BLOB NOT NULL,
    seq      INTEGER NOT NULL,
    head     BLOB NOT NULL,
    salt     BLOB,
    body     BLOB,
    PRIMARY KEY (timeline, seq)
) STRICT, WITHOUT ROWID;
