-- The metadata of runs, each value as JSON, and the runs of each facet: of a name and its value, and of each pair of them.
CREATE TABLE meta (
    run BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, name)
);
CREATE TABLE meta_place (
    facet BYTEA NOT NULL,
    run BIGINT NOT NULL,
    PRIMARY KEY (facet, run)
);
-- A hash, which is in no order: a page of a facet is not to be searched in the order of all runs.
CREATE INDEX meta_place_run ON meta_place USING hash (run);

-- With the events, which have no number: `holdfast_events` looks for all entries of a run, and an index of versions alone
-- cannot be used for that.
DROP INDEX journal_place;
CREATE UNIQUE INDEX journal_place ON journal (run, number);

-- For people and their tools: docs/how-to/query-with-sql.md. Columns are only added within a version of the views. Holdfast never reads a view.
CREATE VIEW holdfast_views AS SELECT 1 AS version;

CREATE VIEW holdfast_runs AS
SELECT
    run.id AS run_id,
    run.workflow AS workflow,
    CASE run.status WHEN 0 THEN 'queued' WHEN 1 THEN 'running' WHEN 2 THEN 'suspended' WHEN 3 THEN 'paused' WHEN 4 THEN 'completed' WHEN 5 THEN 'failed' WHEN 6 THEN 'cancelled' WHEN 7 THEN 'stalled' END AS status,
    timestamptz 'epoch' + run.created * interval '1 microsecond' AS created_at,
    timestamptz 'epoch' + run.updated * interval '1 microsecond' AS updated_at,
    run.head AS head,
    run.timeline AS timeline,
    run.kept AS versions,
    run.step AS step,
    (SELECT journal.steps FROM journal WHERE journal.run = run.key AND journal.number = run.head) AS completed_steps,
    run.size AS size,
    (SELECT above.id FROM run above WHERE above.key = run.parent) AS parent_run,
    (SELECT origin.id FROM run origin WHERE origin.key = run.origin_run) AS forked_from_run,
    run.origin_version AS forked_from_version,
    (SELECT queued.queue FROM queued WHERE queued.run = run.key) AS queue,
    timestamptz 'epoch' + run.due * interval '1 microsecond' AS due_at,
    run.owner AS owner,
    CASE WHEN run.owner IS NOT NULL THEN timestamptz 'epoch' + run.until * interval '1 microsecond' END AS lease_until
FROM run;

CREATE VIEW holdfast_versions AS
SELECT
    run.id AS run_id,
    journal.number AS version,
    nullif(journal.number - journal.back, 0) AS parent,
    journal.timeline AS timeline,
    CASE journal.kind WHEN 0 THEN 'initial' WHEN 1 THEN 'step' WHEN 2 THEN 'manual' WHEN 3 THEN 'timed' WHEN 4 THEN 'merge' WHEN 5 THEN 'import' WHEN 6 THEN 'final' WHEN 7 THEN 'fork' END AS kind,
    CASE journal.status WHEN 0 THEN 'queued' WHEN 1 THEN 'running' WHEN 2 THEN 'suspended' WHEN 3 THEN 'paused' WHEN 4 THEN 'completed' WHEN 5 THEN 'failed' WHEN 6 THEN 'cancelled' WHEN 7 THEN 'stalled' END AS status,
    journal.step AS step,
    journal.steps AS completed_steps,
    timestamptz 'epoch' + journal.at * interval '1 microsecond' AS created_at,
    journal.extra + length(journal.pack) AS size,
    (SELECT string_agg(mark.name, ', ' ORDER BY mark.name) FROM mark WHERE mark.run = journal.run AND mark.number = journal.number AND mark.name <> '') AS tags,
    EXISTS (SELECT 1 FROM mark WHERE mark.run = journal.run AND mark.number = journal.number AND mark.name = '') AS pinned,
    journal.number = run.head AS is_head,
    journal.external AS key,
    encode(substr(journal.seal, 25), 'hex') AS hash
FROM journal JOIN run ON run.key = journal.run
WHERE journal.number > 0 AND journal.pruned = 0;

CREATE VIEW holdfast_events AS
SELECT
    journal.seq AS position,
    run.id AS run_id,
    timestamptz 'epoch' + journal.at * interval '1 microsecond' AS created_at,
    CASE
        WHEN journal.number IS NULL THEN CASE journal.step
            WHEN 'event.sent' THEN 'signal.sent'
            WHEN 'prompt.opened' THEN 'question.opened'
            WHEN 'prompt.answered' THEN 'question.answered'
            WHEN 'prompt.outdated' THEN 'question.outdated'
            WHEN 'prompt.timed_out' THEN 'question.timed_out'
            WHEN 'run.frozen' THEN 'run.stalled'
            WHEN 'run.restored' THEN 'run.recovered'
            WHEN 'run.watched' THEN 'run.watchdog_set'
            WHEN 'timeline.begun' THEN 'timeline.started' -- words: a stored name
            ELSE journal.step END
        WHEN run.workflow IS NULL THEN 'version.saved'
        WHEN journal.kind = 0 AND journal.status = 0 THEN 'run.queued'
        WHEN journal.kind = 0 THEN 'run.started'
        WHEN journal.kind = 1 AND journal.steps = (SELECT before.steps FROM journal before WHERE before.run = journal.run AND before.number = journal.number - journal.back) THEN 'step.failed'
        WHEN journal.kind = 1 THEN 'step.completed'
        WHEN journal.kind = 6 THEN 'run.' || CASE journal.status WHEN 0 THEN 'queued' WHEN 1 THEN 'running' WHEN 2 THEN 'suspended' WHEN 3 THEN 'paused' WHEN 4 THEN 'completed' WHEN 5 THEN 'failed' WHEN 6 THEN 'cancelled' WHEN 7 THEN 'stalled' END
        ELSE 'version.saved'
    END AS kind,
    journal.number AS version,
    CASE WHEN journal.number IS NOT NULL THEN journal.step END AS step,
    CASE WHEN journal.number IS NULL THEN journal.detail END AS data
FROM journal JOIN run ON run.key = journal.run
WHERE journal.number IS NULL OR (journal.number > 0 AND journal.pruned = 0);

CREATE VIEW holdfast_timelines AS
SELECT
    run.id AS run_id,
    timeline.number AS timeline,
    timeline.parent AS started_from,
    timestamptz 'epoch' + timeline.at * interval '1 microsecond' AS created_at,
    timeline.reason AS reason,
    timeline.actor AS actor
FROM timeline JOIN run ON run.key = timeline.run;

CREATE VIEW holdfast_tags AS
SELECT run.id AS run_id, mark.number AS version, mark.name AS tag
FROM mark JOIN run ON run.key = mark.run
WHERE mark.name <> '';

CREATE VIEW holdfast_meta AS
SELECT run.id AS run_id, meta.name AS name, meta.value AS value
FROM meta JOIN run ON run.key = meta.run;
