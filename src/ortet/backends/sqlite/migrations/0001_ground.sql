-- The catalog of the first release: heads, the log of their moves, leases, records.

PRAGMA application_id = 1869771877; -- "orte", so that file(1) and we can tell whose database this is

CREATE TABLE heads (
    name    TEXT PRIMARY KEY,
    oid     BLOB NOT NULL,
    version INTEGER NOT NULL,
    time    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- No AUTOINCREMENT, which writes one page more at every commit: trim_ops keeps the newest op instead,
-- so that a seq is never given twice.
CREATE TABLE ops (
    seq    INTEGER PRIMARY KEY,
    time   INTEGER NOT NULL,
    verb   TEXT NOT NULL,
    name   TEXT NOT NULL,
    old    BLOB,
    new    BLOB,
    actor  TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;

CREATE INDEX ops_by_name ON ops (name);

CREATE TABLE leases (
    name    TEXT PRIMARY KEY,
    owner   TEXT NOT NULL,
    fence   INTEGER NOT NULL,
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE records (
    kind    TEXT NOT NULL,
    key     TEXT NOT NULL,
    value   BLOB NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;

-- The greatest version or fence that was ever removed: what is made again under an old name starts above it,
-- so that nobody who remembers the old one can take the new one for it.
CREATE TABLE floors (
    of    TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO floors (of, value) VALUES ('head', 0), ('row', 0), ('fence', 0);
