-- Purpose: the tables of Backstay: lock and idempotency records, hints, jobs, workflow runs, artifacts and API tokens.
--
-- Times are µs. Write no semicolon in a comment: the loader splits this text into statements at each of them.


-- Records

-- The latest time seen on the host's clock (now) and on the clock that is never set (steady), in µs. boot: the start of
-- the host that steady counts from.
CREATE TABLE backstay_clock (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    now    INTEGER NOT NULL,
    steady INTEGER NOT NULL,
    boot   TEXT    NOT NULL
);

INSERT INTO backstay_clock VALUES (1, 0, 0, '');

-- One record of a room (locks, idempotency keys) for each name. body: a large value that belongs to the record and that
-- the room's machine does not read.
CREATE TABLE backstay_state (
    space      TEXT    NOT NULL,
    room       TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    doc        BLOB    NOT NULL,
    keep_until INTEGER NOT NULL,
    body       BLOB,
    PRIMARY KEY (space, room, name)
) WITHOUT ROWID;

CREATE INDEX backstay_state_sweep ON backstay_state (keep_until);

CREATE TABLE backstay_tag (
    space      TEXT    NOT NULL,
    room       TEXT    NOT NULL,
    tag        TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    keep_until INTEGER NOT NULL,
    PRIMARY KEY (space, room, tag, name)
) WITHOUT ROWID;

CREATE INDEX backstay_tag_sweep ON backstay_tag (keep_until);

-- Hints between processes.
CREATE TABLE backstay_hint (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    origin  TEXT    NOT NULL,
    channel TEXT    NOT NULL,
    payload TEXT    NOT NULL,
    at      INTEGER NOT NULL
);

-- How many workers may still respond to an announcement of work. Each announcement has one row, for a minute.
CREATE TABLE backstay_hint_counter (
    hint       TEXT    PRIMARY KEY,
    remaining  INTEGER NOT NULL,
    keep_until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX backstay_hint_counter_sweep ON backstay_hint_counter (keep_until);


-- Jobs

-- The namespaces by number: every key contains it, and SQLite compares numbers faster than names. fence: the last fence
-- given out. event: the number of the last event given out, which outlives the events.
CREATE TABLE backstay_job_space (
    num   INTEGER PRIMARY KEY,
    name  TEXT    NOT NULL UNIQUE,
    fence INTEGER NOT NULL,
    event INTEGER NOT NULL DEFAULT 0
);

-- What jobs have in common. All kinds with the same queue, label set and rate have the same lane, and a claim looks
-- there. The counts by state answer questions about the backlog without counting its rows. Jobs of runs have kinds of
-- their own (runs = 1) in the same lanes: they are deleted with their run, not by their number.
-- A number is never used twice: a lane is named after a kind, and may outlive it.
CREATE TABLE backstay_job_kind (
    num       INTEGER PRIMARY KEY AUTOINCREMENT,
    space     INTEGER NOT NULL,
    type      TEXT    NOT NULL,
    queue     TEXT    NOT NULL,
    labels    TEXT    NOT NULL,
    bucket    TEXT    NOT NULL,
    period    INTEGER NOT NULL,
    burst     INTEGER NOT NULL,
    lane      INTEGER NOT NULL,
    scheduled INTEGER NOT NULL DEFAULT 0,
    blocked   INTEGER NOT NULL DEFAULT 0,
    pending   INTEGER NOT NULL DEFAULT 0,
    running   INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    skipped   INTEGER NOT NULL DEFAULT 0,
    parked    INTEGER NOT NULL DEFAULT 0,
    runs      INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX backstay_job_kind_pending ON backstay_job_kind (space, queue, lane, labels, bucket, period, burst)
    WHERE pending > 0;

CREATE UNIQUE INDEX backstay_job_kind_key
    ON backstay_job_kind (space, queue, labels, bucket, period, burst, type, runs);

-- state: 0 scheduled, 1 blocked, 2 pending, 3 running, 4 completed, 5 failed, 6 cancelled, 7 skipped,
-- 8 parked (pending, but its concurrency key is taken). rank: the order of the pending jobs.
-- flags: 1 a client waits for its end, 2 a client waits for the end of its chain, 4 other jobs wait for its chain, 8 it
-- starts however its blockers ended, 16 its cancellation is requested, 32 it has blockers, 64 it has a log, 128 it has
-- outputs, 256 it has a run, a chain, a unique key or a concurrency key, 512 its arguments are in backstay_job_body,
-- 1024 its failure does not hold up other jobs, 2048 it starts when a blocker failed, 4096 it was skipped because a job
-- before it had failed, 8192 its run is stored and decides how long the job is kept, 16384 it left files.
-- alarm: the time of the next event that needs no command: the job is due, its lease ends, its record is deleted.
-- 0 means never, or, for a completed job, together with the job before it (by num): of the jobs that completed together
-- only the first is in the index.
-- Every change rewrites the row, so large arguments are in another table.
CREATE TABLE backstay_job (
    num         INTEGER PRIMARY KEY,
    space       INTEGER NOT NULL,
    id          TEXT    NOT NULL,
    kind        INTEGER NOT NULL,
    lane        INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    rank        INTEGER NOT NULL,
    due         INTEGER NOT NULL,
    priority    INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    retries     INTEGER NOT NULL,
    snoozes     INTEGER NOT NULL,
    flags       INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    alarm       INTEGER NOT NULL,
    enqueued    INTEGER NOT NULL,
    started     INTEGER NOT NULL,
    finished    INTEGER NOT NULL,
    keep        INTEGER NOT NULL,
    keep_failed INTEGER NOT NULL,
    progress    REAL    NOT NULL,
    worker      TEXT    NOT NULL,
    chain       TEXT    NOT NULL,
    run         TEXT    NOT NULL,
    follower    TEXT    NOT NULL,
    ckey        TEXT,
    climit      INTEGER,
    uniq        BLOB,
    args        BLOB,
    meta        BLOB,
    error       BLOB,
    result      BLOB
);

CREATE UNIQUE INDEX backstay_job_id ON backstay_job (space, id);

CREATE INDEX backstay_job_pending ON backstay_job (lane, rank, id) WHERE state = 2;

CREATE INDEX backstay_job_alarm ON backstay_job (space, state, alarm) WHERE alarm > 0;

-- kind is the last column: as the first it would spread jobs of the same time over as many places as there are kinds.
CREATE INDEX backstay_job_listed ON backstay_job (space, state, id, kind) WHERE state <> 3;

CREATE INDEX backstay_job_run ON backstay_job (space, run, id) WHERE run <> '';

CREATE INDEX backstay_job_keyed ON backstay_job (space, ckey, state, lane, rank, id) WHERE ckey IS NOT NULL;

-- Arguments that are too large for the job's own row.
CREATE TABLE backstay_job_body (
    num  INTEGER PRIMARY KEY,
    args BLOB NOT NULL,
    meta BLOB NOT NULL
);

-- The last job of each chain that has more than one.
CREATE TABLE backstay_job_chain (
    space INTEGER NOT NULL,
    id    TEXT NOT NULL,
    last  TEXT NOT NULL,
    PRIMARY KEY (space, id)
) WITHOUT ROWID;

-- The chains that a job waits for. ended: 0 not yet, 1 completed, 2 not completed, 4 failed, or skipped because a job
-- before it had failed, 6 completed, and its result is in its own row.
CREATE TABLE backstay_job_wait (
    num    INTEGER NOT NULL,
    chain  TEXT    NOT NULL,
    place  INTEGER NOT NULL,
    ended  INTEGER NOT NULL,
    space  INTEGER NOT NULL,
    result BLOB,
    PRIMARY KEY (num, chain)
) WITHOUT ROWID;

CREATE INDEX backstay_job_wait_chain ON backstay_job_wait (space, chain, ended);

-- These two tell whether a job with many blockers still waits for one, and whether one failed, without reading all.
CREATE INDEX backstay_job_wait_open ON backstay_job_wait (num) WHERE ended = 0;

CREATE INDEX backstay_job_wait_failing ON backstay_job_wait (num) WHERE ended = 4;

-- The job that has each unique key. until: the end of a window, or 0 when the key is free at the job's start or end.
CREATE TABLE backstay_job_unique (
    space INTEGER NOT NULL,
    key   TEXT    NOT NULL,
    job   TEXT    NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (space, key)
) WITHOUT ROWID;

CREATE INDEX backstay_job_unique_until ON backstay_job_unique (space, until) WHERE until > 0;

-- The queues that are paused or limited. Other queues have no row. tat: when the next start would be on time (GCRA).
CREATE TABLE backstay_job_queue (
    space  INTEGER NOT NULL,
    name   TEXT    NOT NULL,
    paused INTEGER NOT NULL,
    bucket TEXT    NOT NULL,
    period INTEGER NOT NULL,
    burst  INTEGER NOT NULL,
    tat    INTEGER NOT NULL,
    PRIMARY KEY (space, name)
) WITHOUT ROWID;

-- The same for the rates that jobs share.
CREATE TABLE backstay_job_rate (
    space  INTEGER NOT NULL,
    bucket TEXT    NOT NULL,
    tat    INTEGER NOT NULL,
    PRIMARY KEY (space, bucket)
) WITHOUT ROWID;

CREATE INDEX backstay_job_rate_tat ON backstay_job_rate (space, tat);

-- The last exchange on each channel of a worker, and its reply.
CREATE TABLE backstay_job_turn (
    space       INTEGER NOT NULL,
    worker      TEXT    NOT NULL,
    incarnation TEXT    NOT NULL,
    lane        INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    keep_until  INTEGER NOT NULL,
    verdicts    BLOB    NOT NULL,
    jobs        BLOB    NOT NULL,
    PRIMARY KEY (space, worker, incarnation, lane)
);

CREATE TABLE backstay_job_log (
    num    INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    stream TEXT    NOT NULL,
    data   TEXT    NOT NULL,
    PRIMARY KEY (num, seq)
) WITHOUT ROWID;

CREATE TABLE backstay_job_output (
    num   INTEGER NOT NULL,
    key   TEXT    NOT NULL,
    value TEXT    NOT NULL,
    PRIMARY KEY (num, key)
) WITHOUT ROWID;

CREATE TABLE backstay_job_worker (
    space      INTEGER NOT NULL,
    id         TEXT    NOT NULL,
    registered INTEGER NOT NULL,
    beat       INTEGER NOT NULL,
    doc        BLOB    NOT NULL,
    PRIMARY KEY (space, id)
) WITHOUT ROWID;

CREATE TABLE backstay_job_cron (
    space INTEGER NOT NULL,
    name  TEXT    NOT NULL,
    at    INTEGER NOT NULL,
    PRIMARY KEY (space, name)
) WITHOUT ROWID;


-- Workflow runs

-- status: 0 queued, 1 running, 2 success, 3 failure, 4 cancelled. until: when the run and its jobs are deleted, 0 while
-- the run has not ended. checked: when its counts were last compared with its jobs. broken: the number of jobs that
-- failed and are not soft. events: the number of its last event. Every change rewrites the row, so its document is in
-- another table.
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

-- One row holds the events of a run that one command caused. num and seq are those of the last event in it. num is the
-- namespace's number and, in the low bits, one more than the last event given out. It is given out under the write
-- lock, so no event appears before one that was already read.
CREATE TABLE backstay_run_event (
    num  INTEGER PRIMARY KEY,
    run  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    at   INTEGER NOT NULL,
    told BLOB    NOT NULL
);

CREATE UNIQUE INDEX backstay_run_event_seq ON backstay_run_event (run, seq);

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

-- The files that jobs leave, by the job's number. parts: how many parts are stored. whole: the last part is stored.
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


-- The API tokens of the server

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
