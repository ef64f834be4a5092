-- The first format. docs/format.md documents the columns; a row's `sum` is its checksum, a version's `seal` is (link, pack hash, hash).

CREATE SEQUENCE run_key;

CREATE TABLE run (
    key BIGINT PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    workflow TEXT,
    status SMALLINT NOT NULL,
    created BIGINT NOT NULL,
    updated BIGINT NOT NULL,
    head BIGINT NOT NULL,
    last BIGINT NOT NULL,
    timeline BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    origin_run BIGINT,
    origin_version BIGINT,
    step TEXT,
    size BIGINT NOT NULL,
    kept BIGINT NOT NULL,
    parent BIGINT,
    due BIGINT,
    owner TEXT,
    detail BYTEA,
    until BIGINT NOT NULL,
    sum BYTEA NOT NULL,
    -- The last writer of the row: a random number by which it recognizes its own write after a lost connection.
    attempt BIGINT NOT NULL
) WITH (fillfactor = 60);
-- None of these columns changes with a step, so that the row's new version stays on its page.
CREATE INDEX run_parent ON run (parent) WHERE parent IS NOT NULL;
CREATE INDEX run_due ON run (due) WHERE due IS NOT NULL;
CREATE INDEX run_live ON run (status, key) WHERE workflow IS NOT NULL AND status NOT IN (4, 5, 6);
CREATE INDEX run_origin ON run (origin_run) WHERE origin_run IS NOT NULL;

-- From 0, so that `last_value` is the last position that was given.
CREATE SEQUENCE journal_seq MINVALUE 0 START 0;
SELECT nextval('journal_seq');

-- Versions (number is set) and other events (step is the kind, detail the data).
CREATE TABLE journal (
    seq BIGINT PRIMARY KEY DEFAULT nextval('journal_seq'),
    run BIGINT NOT NULL,
    number BIGINT,
    back BIGINT,
    timeline BIGINT,
    kind SMALLINT,
    status SMALLINT,
    steps BIGINT,
    pruned SMALLINT,
    extra BIGINT,
    at BIGINT NOT NULL,
    step TEXT,
    detail BYTEA,
    seal BYTEA NOT NULL,
    pack BYTEA
);
CREATE UNIQUE INDEX journal_place ON journal (run, number) WHERE number IS NOT NULL;
CREATE INDEX journal_event ON journal (run, seq) WHERE number IS NULL;
-- Packs are compressed already.
ALTER TABLE journal ALTER COLUMN pack SET STORAGE EXTERNAL;

-- Further blocks of a pack.
CREATE TABLE block (
    run BIGINT NOT NULL,
    number BIGINT NOT NULL,
    n BIGINT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (run, number, n)
);
ALTER TABLE block ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE timeline (
    run BIGINT NOT NULL,
    number BIGINT NOT NULL,
    parent BIGINT NOT NULL,
    at BIGINT NOT NULL,
    reason TEXT,
    actor TEXT,
    sum BYTEA NOT NULL,
    PRIMARY KEY (run, number)
);

-- Tags, and pins under the empty name.
CREATE TABLE mark (
    run BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    at BIGINT NOT NULL,
    sum BYTEA NOT NULL,
    PRIMARY KEY (run, number, name)
);

CREATE TABLE artifact (
    digest BYTEA PRIMARY KEY,
    size BIGINT NOT NULL,
    at BIGINT NOT NULL
);
CREATE TABLE artifact_piece (
    digest BYTEA NOT NULL,
    n BIGINT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (digest, n)
);
ALTER TABLE artifact_piece ALTER COLUMN data SET STORAGE EXTERNAL;

-- Which version's pack refers to which artifact.
CREATE TABLE hold (
    digest BYTEA NOT NULL,
    run BIGINT NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (run, number, digest)
);
CREATE INDEX hold_digest ON hold (digest);

-- Small values that belong to no run.
CREATE TABLE value (
    name TEXT COLLATE "C" PRIMARY KEY,
    data BYTEA NOT NULL,
    revision BIGINT NOT NULL,
    sum BYTEA NOT NULL
);

-- Runs that wait for workers. `ready` is when to look at the run again; NULL if not before its record changes.
CREATE TABLE queued (
    run BIGINT PRIMARY KEY,
    queue TEXT COLLATE "C" NOT NULL,
    priority BIGINT NOT NULL,
    ready BIGINT
);
CREATE INDEX queued_next ON queued (queue, priority DESC, ready, run) WHERE ready IS NOT NULL;
