-- The first format. Few tables and indexes: each costs a page even when it is empty. A row's `sum` guards the row; a version's `seal` is (link, pack hash, hash), see docs/format.md.

CREATE TABLE run (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    workflow TEXT,
    status INTEGER NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    head INTEGER NOT NULL,
    last INTEGER NOT NULL,
    timeline INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    origin_run INTEGER,
    origin_version INTEGER,
    step TEXT,
    size INTEGER NOT NULL,
    kept INTEGER NOT NULL,
    sum BLOB NOT NULL
);

-- Versions (number is set) and other events (step is the kind, detail the data), in the order in which they happened.
-- A row of run 0 only holds a place: positions after a deletion must not be given again.
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    number INTEGER,
    back INTEGER,
    timeline INTEGER,
    kind INTEGER,
    status INTEGER,
    steps INTEGER,
    pruned INTEGER,
    extra INTEGER,
    at INTEGER NOT NULL,
    step TEXT,
    detail BLOB,
    seal BLOB NOT NULL,
    pack BLOB
);
-- Events, whose number is NULL, are in it too, in the order of their positions.
CREATE UNIQUE INDEX journal_place ON journal (run, number);

-- Further blocks of a pack, and under n = -1 the pack itself if it is long.
CREATE TABLE block (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,
    n INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE UNIQUE INDEX block_place ON block (run, number, n);

CREATE TABLE timeline (
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,
    parent INTEGER NOT NULL,
    at INTEGER NOT NULL,
    reason TEXT,
    actor TEXT,
    sum BLOB NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;

-- Tags, and pins under the empty name.
CREATE TABLE mark (
    run INTEGER NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    sum BLOB NOT NULL,
    PRIMARY KEY (run, number, name)
) WITHOUT ROWID;

CREATE TABLE artifact (
    digest BLOB PRIMARY KEY,
    size INTEGER NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE artifact_piece (
    digest BLOB NOT NULL,
    n INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (digest, n)
) WITHOUT ROWID;

-- Which version's pack refers to which artifact.
CREATE TABLE hold (
    digest BLOB NOT NULL,
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (run, number, digest)
) WITHOUT ROWID;
