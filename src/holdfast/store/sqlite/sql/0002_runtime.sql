-- What running workflows needs: who advances a run and until when, when it wants to be resumed, what it waits for, whose part it is.
ALTER TABLE run ADD COLUMN parent INTEGER;
ALTER TABLE run ADD COLUMN due INTEGER;
ALTER TABLE run ADD COLUMN owner TEXT;
ALTER TABLE run ADD COLUMN detail BLOB;
ALTER TABLE run ADD COLUMN until INTEGER NOT NULL DEFAULT 0;

-- Small values that belong to no run.
CREATE TABLE value (
    name TEXT PRIMARY KEY,
    data BLOB NOT NULL,
    revision INTEGER NOT NULL,
    sum BLOB NOT NULL
) WITHOUT ROWID;
