-- Purpose: the tables of Backstay: lock and idempotency records, hints, jobs, workflow runs, artifacts and API tokens.
--
-- Times are µs. Write no semicolon in a comment: the loader splits this text into statements at every semicolon.


-- Records

-- The engine time of the last write, in one row. The engine time never runs back: if the host's clock was set back, the
-- engine adds to `now` what has passed on the monotonic clock since then.
-- now: the engine time of that write.
-- steady: the host's monotonic clock at that write.
-- boot: an id of the host's boot, because monotonic times of different boots are not comparable.
CREATE TABLE backstay_clock (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    now    INTEGER NOT NULL,
    steady INTEGER NOT NULL,
    boot   TEXT    NOT NULL
);

INSERT INTO backstay_clock VALUES (1, 0, 0, '');

-- The records of locks, limits and idempotency keys: one row per name.
-- space: the namespace.
-- room: the primitive of the name: gate (a lock), limit or idempotency.
-- doc: the encoded record.
-- keep_until: when the row may be deleted.
-- body: a large value that belongs to the record but is stored beside it, such as the outcome of an idempotent call.
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

-- Hints (messages that shorten waiting) for other processes. origin: the process that wrote the row. When a process
-- reads hints, it skips the rows that it wrote itself.
CREATE TABLE backstay_hint (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    origin  TEXT    NOT NULL,
    channel TEXT    NOT NULL,
    payload TEXT    NOT NULL,
    at      INTEGER NOT NULL
);

-- One row per announcement of pending jobs, kept for a minute. remaining: at first the number of announced jobs. A
-- worker that wants to claim because of the announcement first subtracts its free slots from this number, down to 0 at
-- the least. It claims only as many jobs as it could subtract, so not all workers rush to claim the same few jobs.
CREATE TABLE backstay_hint_counter (
    hint       TEXT    PRIMARY KEY,
    remaining  INTEGER NOT NULL,
    keep_until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX backstay_hint_counter_sweep ON backstay_hint_counter (keep_until);


-- Jobs

-- The namespaces.
-- num: the namespace's number, which the tables below store as space: SQLite compares numbers faster than names.
-- fence: the last fence that was given.
-- event: the number of the last event, stored here so that the numbers of deleted events are not used again.
CREATE TABLE backstay_job_space (
    num   INTEGER PRIMARY KEY,
    name  TEXT    NOT NULL UNIQUE,
    fence INTEGER NOT NULL,
    event INTEGER NOT NULL DEFAULT 0
);

-- A kind is a combination of type, queue, labels and rate (bucket, period, burst). It counts its jobs by state, so that
-- the size of the backlog is known without counting rows.
-- lane: all kinds with the same queue, labels and rate share a lane, from which claims read.
-- runs: 1 for jobs of workflow runs, which have separate kinds in the same lanes. The pruner's limit on the number of
-- completed jobs does not count these jobs, because they are deleted with their run.
-- num: never used twice (AUTOINCREMENT). A lane has the number of one of its kinds, and may outlive that kind.
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

-- One row per job. Every change rewrites the row, so large arguments are in backstay_job_body.
-- rank: due time minus ten minutes per point of priority. The pending jobs of a lane are claimed in this order, the
-- smallest first.
-- alarm: when the job changes without a command, because it becomes due, its lease expires, or its row is deleted. 0
-- means never. Jobs with consecutive numbers (num) and the same retention that one worker finished together share one
-- alarm, which saves index entries: the first of them has it, and the others have alarm 0. When the first one is
-- deleted, the completed jobs with alarm 0 and the next numbers are deleted, too.
-- state:
--   0 scheduled, 1 blocked, 2 pending, 3 running, 4 completed, 5 failed, 6 cancelled, 7 skipped
--   8 parked: pending, but its concurrency key already has as many running jobs as it allows
-- flags, a sum of (blockers are the chains that the job waits for):
--   1      a client waits for the end of the job
--   2      a client waits for the end of the job's chain
--   4      other jobs wait for the job's chain
--   8      the job starts when all its blockers have ended, whatever their outcome
--   16     the cancellation of the job is requested
--   32     the job has blockers
--   64     the job has a log
--   128    the job has outputs
--   256    the job belongs to a run, continues a chain, or has a unique key or a concurrency key
--   512    the job's arguments are in backstay_job_body
--   1024   the job's failure neither skips the jobs that depend on it nor fails its run
--   2048   the job starts when all its blockers have ended and at least one failed
--   4096   the job was skipped because a job that it depends on had failed
--   8192   the job's run is stored and decides how long the job is kept
--   16384  the job has files
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

-- kind is the last column, so that the entries of new jobs of all kinds are next to each other, in few index pages.
-- With kind as the first column, each kind would write to an index page of its own.
CREATE INDEX backstay_job_listed ON backstay_job (space, state, id, kind) WHERE state <> 3;

CREATE INDEX backstay_job_run ON backstay_job (space, run, id) WHERE run <> '';

CREATE INDEX backstay_job_keyed ON backstay_job (space, ckey, state, lane, rank, id) WHERE ckey IS NOT NULL;

-- Arguments that are too large for the job's own row.
CREATE TABLE backstay_job_body (
    num  INTEGER PRIMARY KEY,
    args BLOB NOT NULL,
    meta BLOB NOT NULL
);

-- The last job of each chain that has more than one job.
CREATE TABLE backstay_job_chain (
    space INTEGER NOT NULL,
    id    TEXT NOT NULL,
    last  TEXT NOT NULL,
    PRIMARY KEY (space, id)
) WITHOUT ROWID;

-- One row for each job and each chain that the job waits for (a blocker of the job). num: the job's row number.
-- outcome:
--   0  the chain has not ended
--   1  the chain completed, and its result is copied to this row
--   2  the chain was cancelled, or was skipped for another reason than a failure
--   4  the chain failed, or was skipped because a job that it depends on had failed
--   6  the chain completed, and belongs to the same run as the job: a claim reads the result from the chain's last job
CREATE TABLE backstay_job_wait (
    num      INTEGER NOT NULL,
    chain    TEXT    NOT NULL,
    position INTEGER NOT NULL,
    outcome  INTEGER NOT NULL,
    space    INTEGER NOT NULL,
    result   BLOB,
    PRIMARY KEY (num, chain)
) WITHOUT ROWID;

CREATE INDEX backstay_job_wait_chain ON backstay_job_wait (space, chain, outcome);

-- The next two indexes show whether a job still waits for a blocker, and whether a blocker failed, without reading all
-- blockers.
CREATE INDEX backstay_job_wait_open ON backstay_job_wait (num) WHERE outcome = 0;

CREATE INDEX backstay_job_wait_failed ON backstay_job_wait (num) WHERE outcome = 4;

-- The job that holds each unique key. until: when the key becomes free, or 0 if the start or the end of the job frees
-- the key.
CREATE TABLE backstay_job_unique (
    space INTEGER NOT NULL,
    key   TEXT    NOT NULL,
    job   TEXT    NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (space, key)
) WITHOUT ROWID;

CREATE INDEX backstay_job_unique_until ON backstay_job_unique (space, until) WHERE until > 0;

-- The queues that are paused or have a rate limit. Queues without either have no row.
-- tat: the "theoretical arrival time" of the rate limiting algorithm GCRA: the time from which on the full burst is
-- available.
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

-- The state of each rate limit that jobs share.
-- tat: the "theoretical arrival time" of the rate limiting algorithm GCRA: the time from which on the full burst is
-- available.
CREATE TABLE backstay_job_rate (
    space  INTEGER NOT NULL,
    bucket TEXT    NOT NULL,
    tat    INTEGER NOT NULL,
    PRIMARY KEY (space, bucket)
) WITHOUT ROWID;

CREATE INDEX backstay_job_rate_tat ON backstay_job_rate (space, tat);

-- The last exchange (acknowledge and claim in one request) of each worker channel, and its reply. If the worker resends
-- the exchange because the reply was lost, it gets this stored reply.
CREATE TABLE backstay_job_exchange (
    space       INTEGER NOT NULL,
    worker      TEXT    NOT NULL,
    incarnation TEXT    NOT NULL,
    channel     INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    keep_until  INTEGER NOT NULL,
    verdicts    BLOB    NOT NULL,
    jobs        BLOB    NOT NULL,
    PRIMARY KEY (space, worker, incarnation, channel)
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

-- One row per run. Every change rewrites the row, so the run's document is in backstay_run_doc. The columns named like
-- job states count the run's jobs in that state.
-- status: 0 queued, 1 running, 2 success, 3 failure, 4 cancelled.
-- keep_until: when the run and its jobs are deleted, 0 while the run has not ended.
-- checked: when the counts were last compared with the run's jobs.
-- hard_failures: the number of failed jobs whose failure fails the run.
-- events: the number of the run's last event.
CREATE TABLE backstay_run (
    num           INTEGER PRIMARY KEY,
    space         INTEGER NOT NULL,
    id            TEXT    NOT NULL,
    workflow      TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    status        INTEGER NOT NULL,
    created       INTEGER NOT NULL,
    started       INTEGER NOT NULL,
    finished      INTEGER NOT NULL,
    timeout       INTEGER NOT NULL,
    deadline      INTEGER NOT NULL,
    keep          INTEGER NOT NULL,
    keep_until    INTEGER NOT NULL,
    checked       INTEGER NOT NULL,
    cancel        INTEGER NOT NULL,
    reason        TEXT    NOT NULL,
    events        INTEGER NOT NULL,
    hard_failures INTEGER NOT NULL,
    scheduled     INTEGER NOT NULL,
    blocked       INTEGER NOT NULL,
    pending       INTEGER NOT NULL,
    running       INTEGER NOT NULL,
    completed     INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    cancelled     INTEGER NOT NULL,
    skipped       INTEGER NOT NULL
);

CREATE UNIQUE INDEX backstay_run_id ON backstay_run (space, id);

CREATE INDEX backstay_run_status ON backstay_run (space, status, id);

CREATE INDEX backstay_run_workflow ON backstay_run (space, workflow, id);

CREATE INDEX backstay_run_workflow_status ON backstay_run (space, workflow, status, id);

CREATE INDEX backstay_run_deadline ON backstay_run (space, deadline) WHERE keep_until = 0 AND deadline > 0;

CREATE INDEX backstay_run_checked ON backstay_run (space, checked) WHERE keep_until = 0;

CREATE INDEX backstay_run_keep_until ON backstay_run (space, keep_until) WHERE keep_until > 0;

CREATE TABLE backstay_run_doc (
    num INTEGER PRIMARY KEY,
    doc BLOB NOT NULL
);

-- The events of runs. One row holds the events of one run that one command caused.
-- num: has the namespace's number in its high bits, and in its low bits the number, in the namespace, of the last event
-- in the row. Numbers are given under the write lock, so a new event never sorts before an event that a reader has
-- already read.
-- seq: the number, in the run, of the last event in the row.
CREATE TABLE backstay_run_event (
    num    INTEGER PRIMARY KEY,
    run    INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    events BLOB    NOT NULL
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

-- The files that jobs produced.
-- job: the job's row number.
-- parts: how many parts of the file are stored.
-- complete: 1 if all parts are stored.
CREATE TABLE backstay_artifact (
    num      INTEGER PRIMARY KEY,
    job      INTEGER NOT NULL,
    name     TEXT    NOT NULL,
    digest   TEXT    NOT NULL,
    size     INTEGER NOT NULL,
    created  INTEGER NOT NULL,
    parts    INTEGER NOT NULL,
    complete INTEGER NOT NULL
);

CREATE UNIQUE INDEX backstay_artifact_name ON backstay_artifact (job, name, complete, digest);

CREATE TABLE backstay_artifact_part (
    artifact INTEGER NOT NULL,
    part     INTEGER NOT NULL,
    data     BLOB    NOT NULL
);

CREATE UNIQUE INDEX backstay_artifact_part_place ON backstay_artifact_part (artifact, part);


-- The API tokens of the server
-- owner: tokens with the same owner share their locks, leases and worker ids. Empty: the token has its own.

CREATE TABLE backstay_token (
    space   INTEGER NOT NULL,
    id      TEXT    NOT NULL,
    digest  BLOB    NOT NULL,
    role    TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    owner   TEXT    NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (space, id)
) WITHOUT ROWID;

-- Secrets of the namespace, such as the key that signs the names of leases

CREATE TABLE backstay_secret (
    space INTEGER NOT NULL,
    name  TEXT    NOT NULL,
    value BLOB    NOT NULL,
    PRIMARY KEY (space, name)
) WITHOUT ROWID;
