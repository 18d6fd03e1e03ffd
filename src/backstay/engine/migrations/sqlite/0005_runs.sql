-- Purpose: workflow runs: jobs that belong together, what happened to them, what they are made from and leave behind.

-- The number of the last event given out in a namespace: it outlives the events themselves.
ALTER TABLE backstay_job_space ADD COLUMN event INTEGER NOT NULL DEFAULT 0;

-- Jobs of runs are counted apart (runs = 1), in the same lanes: they go with their run, not by their number.
ALTER TABLE backstay_job_kind ADD COLUMN runs INTEGER NOT NULL DEFAULT 0;

DROP INDEX backstay_job_kind_key;

CREATE UNIQUE INDEX backstay_job_kind_key
    ON backstay_job_kind (space, queue, labels, bucket, period, burst, type, runs);

-- More flags of a job: 1024 its failure holds nobody up, 2048 it starts when a blocker failed, 4096 it was skipped
-- because one before it had failed, 8192 its run is stored and decides how long it stays, 16384 it left files.

-- More ends of a blocker: 4 failed, or skipped because one before it had, 6 completed, its result lies with itself.
-- A job with many blockers finds out whether any is left, or whether any failed, without a look at the others.
CREATE INDEX backstay_job_wait_open ON backstay_job_wait (num) WHERE ended = 0;

CREATE INDEX backstay_job_wait_failing ON backstay_job_wait (num) WHERE ended = 4;

-- status: 0 queued, 1 running, 2 success, 3 failure, 4 cancelled. until: when it goes, with its jobs, 0 while it has
-- not ended. checked: when its counts were last compared with its jobs. broken: jobs that failed and are not soft.
-- events: the number of its last. The row is rewritten with every step, so its document lies elsewhere.
CREATE TABLE backstay_run (
    num       INTEGER PRIMARY KEY,
    space     INTEGER NOT NULL,
    id        TEXT    NOT NULL,
    workflow  TEXT    NOT NULL,
    version   INTEGER NOT NULL,
    status    INTEGER NOT NULL,
    created   INTEGER NOT NULL,
    started   INTEGER NOT NULL,
    finished  INTEGER NOT NULL,
    timeout   INTEGER NOT NULL,
    deadline  INTEGER NOT NULL,
    keep      INTEGER NOT NULL,
    until     INTEGER NOT NULL,
    checked   INTEGER NOT NULL,
    cancel    INTEGER NOT NULL,
    reason    TEXT    NOT NULL,
    events    INTEGER NOT NULL,
    broken    INTEGER NOT NULL,
    scheduled INTEGER NOT NULL,
    blocked   INTEGER NOT NULL,
    pending   INTEGER NOT NULL,
    running   INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    skipped   INTEGER NOT NULL
);

CREATE UNIQUE INDEX backstay_run_id ON backstay_run (space, id);

CREATE INDEX backstay_run_status ON backstay_run (space, status, id);

CREATE INDEX backstay_run_workflow ON backstay_run (space, workflow, id);

CREATE INDEX backstay_run_workflow_status ON backstay_run (space, workflow, status, id);

CREATE INDEX backstay_run_deadline ON backstay_run (space, deadline) WHERE until = 0 AND deadline > 0;

CREATE INDEX backstay_run_checked ON backstay_run (space, checked) WHERE until = 0;

CREATE INDEX backstay_run_until ON backstay_run (space, until) WHERE until > 0;

CREATE TABLE backstay_run_doc (
    num INTEGER PRIMARY KEY,
    doc BLOB NOT NULL
);

-- What one verb told of a run, in one row. num, seq: of the last event in it. num is the namespace's number and, below
-- it, one more than the last that was given out, under the write lock, so nothing appears before what was read.
CREATE TABLE backstay_run_event (
    num  INTEGER PRIMARY KEY,
    run  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    at   INTEGER NOT NULL,
    told BLOB    NOT NULL
);

CREATE UNIQUE INDEX backstay_run_event_seq ON backstay_run_event (run, seq);

DROP TABLE backstay_job_event;

CREATE TABLE backstay_definition (
    num      INTEGER PRIMARY KEY,
    space    INTEGER NOT NULL,
    workflow TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    newest   INTEGER NOT NULL,
    digest   TEXT    NOT NULL,
    created  INTEGER NOT NULL,
    doc      BLOB    NOT NULL
);

CREATE UNIQUE INDEX backstay_definition_version ON backstay_definition (space, workflow, version);

CREATE UNIQUE INDEX backstay_definition_newest ON backstay_definition (space, workflow) WHERE newest = 1;

-- Files that jobs left, by the job's number. parts: how many have come. whole: the last one has.
CREATE TABLE backstay_artifact (
    num     INTEGER PRIMARY KEY,
    job     INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    digest  TEXT    NOT NULL,
    size    INTEGER NOT NULL,
    created INTEGER NOT NULL,
    parts   INTEGER NOT NULL,
    whole   INTEGER NOT NULL
);

CREATE UNIQUE INDEX backstay_artifact_name ON backstay_artifact (job, name, whole, digest);

CREATE TABLE backstay_artifact_part (
    artifact INTEGER NOT NULL,
    part     INTEGER NOT NULL,
    data     BLOB    NOT NULL
);

CREATE UNIQUE INDEX backstay_artifact_part_place ON backstay_artifact_part (artifact, part);

CREATE TABLE backstay_token (
    space   INTEGER NOT NULL,
    id      TEXT    NOT NULL,
    digest  BLOB    NOT NULL,
    role    TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (space, id)
) WITHOUT ROWID;
