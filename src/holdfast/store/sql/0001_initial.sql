-- The first format. A row's `sum` guards the row; a version's `seal` is (link, pack hash, hash), see docs/format.md.

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
CREATE INDEX run_origin ON run (origin_run) WHERE origin_run IS NOT NULL;

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
CREATE UNIQUE INDEX journal_version ON journal (run, number) WHERE number IS NOT NULL;
CREATE INDEX journal_event ON journal (run, seq) WHERE number IS NULL;

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
    PRIMARY KEY (run, name, number)
) WITHOUT ROWID;
CREATE INDEX mark_version ON mark (run, number);

CREATE TABLE artifact (
    digest BLOB PRIMARY KEY,
    size INTEGER NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE artifact_piece (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL,
    n INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE UNIQUE INDEX artifact_piece_place ON artifact_piece (digest, n);

-- Which version's pack refers to which artifact.
CREATE TABLE hold (
    digest BLOB NOT NULL,
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (digest, run, number)
) WITHOUT ROWID;
CREATE INDEX hold_version ON hold (run, number);
