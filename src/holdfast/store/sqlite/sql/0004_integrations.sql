-- The names that other systems give to versions, unique in a run, and values that are stored under such a name.
ALTER TABLE journal ADD COLUMN external TEXT;
CREATE UNIQUE INDEX journal_external ON journal (run, external) WHERE external IS NOT NULL;

CREATE TABLE attachment (
    run INTEGER NOT NULL,
    key TEXT NOT NULL,
    name TEXT NOT NULL,
    at INTEGER NOT NULL,
    data BLOB NOT NULL,
    hash BLOB NOT NULL,
    PRIMARY KEY (run, key, name)
) WITHOUT ROWID;

-- Items: values under a namespace and a key, which belong to no run. The index by time is created with the first item.
CREATE TABLE item (
    namespace BLOB NOT NULL,
    key BLOB NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    ttl INTEGER,
    expires INTEGER,
    sum BLOB NOT NULL,
    terms BLOB NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

-- The terms of all items, by which a search with a filter finds them.
CREATE TABLE item_term (
    namespace BLOB NOT NULL,
    term BLOB NOT NULL,
    updated INTEGER NOT NULL,
    key BLOB NOT NULL,
    PRIMARY KEY (namespace, term, updated, key)
) WITHOUT ROWID;

-- The vectors by which items are found: several for an item with several texts.
CREATE TABLE item_vector (
    namespace BLOB NOT NULL,
    key BLOB NOT NULL,
    n INTEGER NOT NULL,
    sum BLOB NOT NULL,
    vector BLOB NOT NULL,
    PRIMARY KEY (namespace, key, n)
) WITHOUT ROWID;
