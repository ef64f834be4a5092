-- The names that other systems give to versions, unique in a run, and values that are stored under such a name.
ALTER TABLE journal ADD COLUMN external TEXT COLLATE "C";
CREATE UNIQUE INDEX journal_external ON journal (run, external) WHERE external IS NOT NULL;

CREATE TABLE attachment (
    run BIGINT NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    at BIGINT NOT NULL,
    data BYTEA NOT NULL,
    hash BYTEA NOT NULL,
    PRIMARY KEY (run, key, name)
);
ALTER TABLE attachment ALTER COLUMN data SET STORAGE EXTERNAL;

-- Items: values under a namespace and a key, which belong to no run.
CREATE TABLE item (
    namespace BYTEA NOT NULL,
    key BYTEA NOT NULL,
    created BIGINT NOT NULL,
    updated BIGINT NOT NULL,
    ttl BIGINT,
    expires BIGINT,
    sum BYTEA NOT NULL,
    terms BYTEA NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (namespace, key)
);
CREATE INDEX item_recent ON item (namespace, updated, key);
CREATE INDEX item_expires ON item (expires) WHERE expires IS NOT NULL;
-- Long values are compressed already.
ALTER TABLE item ALTER COLUMN data SET STORAGE EXTERNAL;

-- The terms of all items, by which a search with a filter finds them.
CREATE TABLE item_term (
    namespace BYTEA NOT NULL,
    term BYTEA NOT NULL,
    updated BIGINT NOT NULL,
    key BYTEA NOT NULL,
    PRIMARY KEY (namespace, term, updated, key)
);

-- The vectors by which items are found: several for an item with several texts. An array, because the extension
-- pgvector, which compares vectors, may be missing.
CREATE TABLE item_vector (
    namespace BYTEA NOT NULL,
    key BYTEA NOT NULL,
    n BIGINT NOT NULL,
    sum BYTEA NOT NULL,
    vector REAL[] NOT NULL,
    PRIMARY KEY (namespace, key, n)
);
ALTER TABLE item_vector ALTER COLUMN vector SET STORAGE EXTERNAL;
