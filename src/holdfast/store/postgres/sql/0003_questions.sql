-- The open questions of runs.
CREATE TABLE question (
    run BIGINT NOT NULL,
    number BIGINT NOT NULL,
    kind TEXT NOT NULL,
    opened BIGINT NOT NULL,
    workflow TEXT,
    assignee TEXT,
    priority BIGINT NOT NULL,
    due BIGINT,
    expires BIGINT,
    wake BIGINT,
    sum BYTEA NOT NULL,
    PRIMARY KEY (run, number)
);
CREATE INDEX question_wake ON question (wake, run, number) WHERE wake IS NOT NULL;

-- Where a question is in each list that it is part of, by priority (rank is its negative), then by time.
CREATE TABLE question_place (
    facet BYTEA NOT NULL,
    rank BIGINT NOT NULL,
    opened BIGINT NOT NULL,
    run BIGINT NOT NULL,
    number BIGINT NOT NULL,
    expires BIGINT,
    PRIMARY KEY (facet, rank, opened, run, number)
);
CREATE INDEX question_place_run ON question_place (run);
