-- The open questions of runs. The index by `wake` is created with the first question: an empty index takes a page, too.
CREATE TABLE question (
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    opened INTEGER NOT NULL,
    workflow TEXT,
    assignee TEXT,
    priority INTEGER NOT NULL,
    due INTEGER,
    expires INTEGER,
    wake INTEGER,
    sum BLOB NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;

-- Where a question is in each list that it is part of, by priority (rank is its negative), then by time.
CREATE TABLE question_place (
    facet BLOB NOT NULL,
    rank INTEGER NOT NULL,
    opened INTEGER NOT NULL,
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,
    expires INTEGER,
    PRIMARY KEY (facet, rank, opened, run, number)
) WITHOUT ROWID;
