-- Purpose: workflow runs: jobs that belong together, what happened to them, what they are made from and leave behind.

-- The number of the last event given out in a namespace: it outlives the events themselves.
ALTER TABLE holdfast_job_space ADD COLUMN event INTEGER NOT NULL DEFAULT 0;

-- Jobs of runs are counted apart (runs = 1), in the same lanes: they go with their run, not by their number.
ALTER TABLE holdfast_job_kind ADD COLUMN runs INTEGER NOT NULL DEFAULT 0;

DROP INDEX holdfast_job_kind_key;

CREATE UNIQUE INDEX holdfast_job_kind_key
    ON holdfast_job_kind (space, queue, labels, bucket, period, burst, type, runs);

-- More flags of a job: 1024 its failure holds nobody up, 2048 it starts when a blocker failed, 4096 it was skipped
-- because one before it had failed, 8192 its run is stored and decides how long it stays, 16384 it left files.

-- More ends of a blocker: 4 failed, or skipped because one before it had, 6 completed, its result lies with itself.
-- A job with many blockers finds out whether any is left, or whether any failed, without a look at the others.
CREATE INDEX holdfast_job_wait_open ON holdfast_job_wait (num) WHERE ended = 0;

CREATE INDEX holdfast_job_wait_failing ON holdfast_job_wait (num) WHERE ended = 4;

-- status: 0 queued, 1 running, 2 success, 3 failure, 4 cancelled. until: when it goes, with its jobs, 0 while it has
-- not ended. checked: when its counts were last compared with its jobs. broken: jobs that failed and are not soft.
-- events: the number of its last. The row is rewritten with every step, so its document lies elsewhere.
CREATE TABLE holdfast_run (
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

CREATE UNIQUE INDEX holdfast_run_id ON holdfast_run (space, id);

CREATE INDEX holdfast_run_status ON holdfast_run (space, status, id);

CREATE INDEX holdfast_run_workflow ON holdfast_run (space, workflow, id);

CREATE INDEX holdfast_run_workflow_status ON holdfast_run (space, workflow, status, id);

CREATE INDEX holdfast_run_deadline ON holdfast_run (space, deadline) WHERE until = 0 AND deadline > 0;

CREATE INDEX holdfast_run_checked ON holdfast_run (space, checked) WHERE until = 0;

CREATE INDEX holdfast_run_until ON holdfast_run (space, until) WHERE until > 0;

CREATE TABLE holdfast_run_doc (
    num INTEGER PRIMARY KEY,
    doc BLOB NOT NULL
);

-- What one verb told of a run, in one row. num, seq: of the last event in it. num is the namespace's number and, below
-- it, one more than the last that was given out, under the write lock, so nothing appears before what was read.
CREATE TABLE holdfast_run_event (
    num  INTEGER PRIMARY KEY,
    run  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    at   INTEGER NOT NULL,
    told BLOB    NOT NULL
);

CREATE UNIQUE INDEX holdfast_run_event_seq ON holdfast_run_event (run, seq);

DROP TABLE holdfast_job_event;

CREATE TABLE holdfast_definition (
    num      INTEGER PRIMARY KEY,
    space    INTEGER NOT NULL,
    workflow TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    newest   INTEGER NOT NULL,
    digest   TEXT    NOT NULL,
    created  INTEGER NOT NULL,
    doc      BLOB    NOT NULL
);

CREATE UNIQUE INDEX holdfast_definition_version ON holdfast_definition (space, workflow, version);

CREATE UNIQUE INDEX holdfast_definition_newest ON holdfast_definition (space, workflow) WHERE newest = 1;

-- Files that jobs left, by the job's number. parts: how many have come. whole: the last one has.
CREATE TABLE holdfast_artifact (
    num     INTEGER PRIMARY KEY,
    job     INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    digest  TEXT    NOT NULL,
    size    INTEGER NOT NULL,
    created INTEGER NOT NULL,
    parts   INTEGER NOT NULL,
    whole   INTEGER NOT NULL
);

CREATE UNIQUE INDEX holdfast_artifact_name ON holdfast_artifact (job, name, whole, digest);

CREATE TABLE holdfast_artifact_part (
    artifact INTEGER NOT NULL,
    part     INTEGER NOT NULL,
    data     BLOB    NOT NULL
);

CREATE UNIQUE INDEX holdfast_artifact_part_place ON holdfast_artifact_part (artifact, part);

CREATE TABLE holdfast_token (
    space   INTEGER NOT NULL,
    id      TEXT    NOT NULL,
    digest  BLOB    NOT NULL,
    role    TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (space, id)
) WITHOUT ROWID;
