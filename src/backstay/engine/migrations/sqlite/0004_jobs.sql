-- Purpose: jobs: what is to be done, who does it, what came of it.

-- Namespaces by number: it stands in every key, and numbers are compared faster than names. fence: the last given out.
CREATE TABLE backstay_job_space (
    num   INTEGER PRIMARY KEY,
    name  TEXT    NOT NULL UNIQUE,
    fence INTEGER NOT NULL
);

-- What jobs have in common. `lane` is the same for all kinds of one queue, label set and rate: a claim looks there.
-- Counts by state: what people ask for is never counted over the backlog.
-- A number is never used twice, so that a lane's name may outlive the kind that gave it.
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
    parked    INTEGER NOT NULL DEFAULT 0
);

CREATE UNIQUE INDEX backstay_job_kind_key ON backstay_job_kind (space, queue, labels, bucket, period, burst, type);

CREATE INDEX backstay_job_kind_pending ON backstay_job_kind (space, queue, lane, labels, bucket, period, burst)
    WHERE pending > 0;

-- state: 0 scheduled, 1 blocked, 2 pending, 3 running, 4 completed, 5 failed, 6 cancelled, 7 skipped,
-- 8 parked (pending, but its concurrency key is taken). rank: the order of pending ones.
-- flags: 1 its end is waited for, 2 its chain's end is, 4 other jobs wait for its chain, 8 it starts however its
-- blockers ended, 16 its cancellation is wanted, 32 it has blockers, 64 it has a log, 128 it has outputs, 256 it has
-- a run, a chain, a unique or a concurrency key, 512 its arguments lie in backstay_job_body.
-- alarm: when something happens to it by itself: it is due, its lease ends, its record goes. 0: never, or, of a completed
-- job, with the one before it (by num): of jobs that completed together only the first is in the index.
-- The row is rewritten with every change, so arguments that are large lie elsewhere.
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

-- Not by kind: neighbours in time would lie in as many places as there are kinds.
CREATE INDEX backstay_job_listed ON backstay_job (space, state, id, kind) WHERE state <> 3;

CREATE INDEX backstay_job_run ON backstay_job (space, run, id) WHERE run <> '';

CREATE INDEX backstay_job_keyed ON backstay_job (space, ckey, state, lane, rank, id) WHERE ckey IS NOT NULL;

-- Arguments that are too large for the job's own row.
CREATE TABLE backstay_job_body (
    num  INTEGER PRIMARY KEY,
    args BLOB NOT NULL,
    meta BLOB NOT NULL
);

-- The last job of a chain that has more than one.
CREATE TABLE backstay_job_chain (
    space INTEGER NOT NULL,
    id    TEXT NOT NULL,
    last  TEXT NOT NULL,
    PRIMARY KEY (space, id)
) WITHOUT ROWID;

-- The chains that a job waits for. ended: 0 not yet, 1 completed, 2 otherwise, 3 otherwise, but that was forgiven.
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

-- Who has a unique key. until: the end of a window, 0 where the job's own course decides.
CREATE TABLE backstay_job_unique (
    space INTEGER NOT NULL,
    key   TEXT    NOT NULL,
    job   TEXT    NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (space, key)
) WITHOUT ROWID;

CREATE INDEX backstay_job_unique_until ON backstay_job_unique (space, until) WHERE until > 0;

-- Queues that are paused or limited, others have no row. tat: when the next start would be on time (GCRA).
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

-- The last turn of each lane of a worker: what it was answered.
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

-- What happened to the jobs of a run, in order.
CREATE TABLE backstay_job_event (
    space INTEGER NOT NULL,
    run   TEXT    NOT NULL,
    seq   INTEGER NOT NULL,
    at    INTEGER NOT NULL,
    kind  TEXT    NOT NULL,
    job   TEXT    NOT NULL,
    doc   BLOB    NOT NULL,
    PRIMARY KEY (space, run, seq)
) WITHOUT ROWID;
