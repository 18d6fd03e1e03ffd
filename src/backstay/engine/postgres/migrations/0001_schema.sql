-- Purpose: the tables of Backstay: lock and idempotency records, hints, jobs, workflow runs, artifacts and API tokens.
--
-- Times are µs of the server's clock. In the job and run tables `''` and 0 mean "none".


-- Records

-- The records of locks and idempotency keys: one row per name.
-- `space` is the namespace, `room` the primitive that the name belongs to.
-- `name` is bytea, which holds any text and sorts by bytes.
-- `doc` is the encoded record. It is NULL while the transaction that creates the row is open.
-- `keep_until` is when the row may be deleted, rounded up by about an eighth of the time until then: an indexed column
-- that changed with every write would prevent HOT updates.
-- `body` is a large value that is stored beside the record, such as the outcome of an idempotent call. Commands are
-- applied to `doc` alone, without reading `body`.
CREATE TABLE backstay_state (
    space      text   NOT NULL,
    room       text   NOT NULL,
    name       bytea  NOT NULL,
    doc        bytea,
    keep_until bigint NOT NULL DEFAULT 0,
    body       bytea,
    PRIMARY KEY (space, room, name)
) WITH (fillfactor = 60);

CREATE INDEX backstay_state_sweep ON backstay_state (keep_until);

CREATE TABLE backstay_tag (
    space      text   NOT NULL,
    room       text   NOT NULL,
    tag        bytea  NOT NULL,
    name       bytea  NOT NULL,
    keep_until bigint NOT NULL,
    PRIMARY KEY (space, room, tag, name)
);

CREATE INDEX backstay_tag_sweep ON backstay_tag (keep_until);

-- Counters of announcements. An announcement of N new jobs has a counter, `remaining`, which starts at N. Each worker
-- takes as much from it as it has free slots, so not all workers claim at once. A row is kept for a minute.
CREATE TABLE backstay_hint_counter (
    hint       text   PRIMARY KEY,
    remaining  bigint NOT NULL,
    keep_until bigint NOT NULL
);

CREATE INDEX backstay_hint_counter_sweep ON backstay_hint_counter (keep_until);


-- Jobs
--
-- `backstay_job` holds the jobs that have not ended. `backstay_job_done` holds the jobs that have ended. So
-- `backstay_job` is as small as the backlog: vacuuming it is cheap, and ended jobs do not slow down a claim.
--
-- `lane` is a hash of the namespace, the queue, the labels, the bucket of the job's rate (jobs with the same bucket
-- share one rate limit), and whether the job has a concurrency key.
-- Claims take the pending jobs of a lane in the order of `rank`, then of `id`.
-- `fence` is the fence of the running job's lease. It is 0 while the job is not running.
-- `state` is one of the states that the API shows (pending, running, …) or `parked`. The API shows a parked job as
-- pending. A claim skipped it, because as many jobs of its concurrency key were running as the key allows.
-- `upstream` lists the chains of the same run that the job waits for or waited for, separated by chr(31).
-- `flags` is the sum of:
--   1    a client waits for the end of the job
--   2    a client waits for the end of the job's chain
--   4    other jobs wait for the job's chain
--   8    the job holds its unique key until it is done
--   16   the job holds its unique key until it starts
--   32   the job has a concurrency key
--   64   the job waits or waited for other jobs
--   128  the job belongs to a run in `backstay_run`
--   256  the job is soft: its failure does not hold up other jobs

-- The fixed-width columns come first: PostgreSQL finds them without reading the texts of a row.
CREATE TABLE backstay_job (
    lane          bigint  NOT NULL,
    rank          bigint  NOT NULL,
    due           bigint  NOT NULL,
    until         bigint  NOT NULL DEFAULT 0,
    fence         bigint  NOT NULL DEFAULT 0,
    last_fence    bigint  NOT NULL DEFAULT 0,
    enqueued      bigint  NOT NULL,
    started       bigint  NOT NULL DEFAULT 0,
    turn          bigint  NOT NULL DEFAULT 0,
    keep          bigint  NOT NULL,
    keep_failed   bigint  NOT NULL,
    unique_window bigint  NOT NULL DEFAULT 0,
    rate_interval bigint  NOT NULL DEFAULT 0,
    progress      float8  NOT NULL DEFAULT 0,
    priority      integer NOT NULL DEFAULT 0,
    attempt       integer NOT NULL DEFAULT 0,
    retries       integer NOT NULL DEFAULT 0,
    snoozes       integer NOT NULL DEFAULT 0,
    flags         integer NOT NULL DEFAULT 0,
    key_limit     integer NOT NULL DEFAULT 0,
    rate_burst    integer NOT NULL DEFAULT 0,
    state         text COLLATE "C" NOT NULL,
    space         text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    chain         text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL DEFAULT '',
    run           text COLLATE "C" NOT NULL DEFAULT '',
    type          text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    labels        text COLLATE "C" NOT NULL DEFAULT '',
    worker        text COLLATE "C" NOT NULL DEFAULT '',
    bucket        text COLLATE "C" NOT NULL DEFAULT '',
    unique_key    text COLLATE "C" NOT NULL DEFAULT '',
    unique_scope  text COLLATE "C" NOT NULL DEFAULT '',
    condition     text COLLATE "C" NOT NULL DEFAULT '',
    args          bytea   NOT NULL,
    meta          bytea   NOT NULL,
    error         bytea   NOT NULL DEFAULT '',
    cancel        text,
    upstream      text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (space, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);

-- As few indexes as possible, because every enqueue and every claim must update them.
CREATE INDEX backstay_job_ready ON backstay_job (lane, rank, id) WHERE state = 'pending';
CREATE INDEX backstay_job_lease ON backstay_job (space, until) WHERE state = 'running';
CREATE INDEX backstay_job_due ON backstay_job (space, due, id) WHERE state = 'scheduled';
CREATE INDEX backstay_job_key ON backstay_job (space, key, state, lane, rank, id) WHERE key <> '';
CREATE INDEX backstay_job_chain ON backstay_job (space, chain) WHERE chain <> id;
CREATE INDEX backstay_job_run ON backstay_job (space, run, id) WHERE run <> '';

-- The jobs that have ended: the columns of `backstay_job`, and columns for how the job ended.
-- `blamed`: the job was skipped because a job that it depends on had failed.
CREATE TABLE backstay_job_done (
    lane          bigint  NOT NULL,
    rank          bigint  NOT NULL,
    due           bigint  NOT NULL,
    until         bigint  NOT NULL DEFAULT 0,
    fence         bigint  NOT NULL DEFAULT 0,
    last_fence    bigint  NOT NULL DEFAULT 0,
    enqueued      bigint  NOT NULL,
    started       bigint  NOT NULL DEFAULT 0,
    turn          bigint  NOT NULL DEFAULT 0,
    keep          bigint  NOT NULL,
    keep_failed   bigint  NOT NULL,
    unique_window bigint  NOT NULL DEFAULT 0,
    rate_interval bigint  NOT NULL DEFAULT 0,
    progress      float8  NOT NULL DEFAULT 0,
    priority      integer NOT NULL DEFAULT 0,
    attempt       integer NOT NULL DEFAULT 0,
    retries       integer NOT NULL DEFAULT 0,
    snoozes       integer NOT NULL DEFAULT 0,
    flags         integer NOT NULL DEFAULT 0,
    key_limit     integer NOT NULL DEFAULT 0,
    rate_burst    integer NOT NULL DEFAULT 0,
    state         text COLLATE "C" NOT NULL,
    space         text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    chain         text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL DEFAULT '',
    run           text COLLATE "C" NOT NULL DEFAULT '',
    type          text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    labels        text COLLATE "C" NOT NULL DEFAULT '',
    worker        text COLLATE "C" NOT NULL DEFAULT '',
    bucket        text COLLATE "C" NOT NULL DEFAULT '',
    unique_key    text COLLATE "C" NOT NULL DEFAULT '',
    unique_scope  text COLLATE "C" NOT NULL DEFAULT '',
    condition     text COLLATE "C" NOT NULL DEFAULT '',
    args          bytea   NOT NULL,
    meta          bytea   NOT NULL,
    error         bytea   NOT NULL DEFAULT '',
    cancel        text,
    finished      bigint  NOT NULL,
    keep_until    bigint  NOT NULL,
    followed_by   text COLLATE "C" NOT NULL DEFAULT '',
    result        bytea,
    blamed        boolean NOT NULL DEFAULT false,
    upstream      text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (space, id)
);

CREATE INDEX backstay_job_done_state ON backstay_job_done (space, state, id) WHERE state <> 'completed';
CREATE INDEX backstay_job_done_chain ON backstay_job_done (space, chain, id) WHERE chain <> id;
CREATE INDEX backstay_job_done_run ON backstay_job_done (space, run, id) WHERE run <> '';
-- The pruner's index. It leaves out the jobs of runs (keep_until = 2^63 - 1), which are deleted with their run.
CREATE INDEX backstay_job_done_keep ON backstay_job_done (keep_until) WHERE keep_until < 9223372036854775807;

-- Dependencies: one row for each job and each chain that the job waits for or waited for, with how the chain ended.
CREATE TABLE backstay_job_after (
    space     text COLLATE "C" NOT NULL,
    job       text COLLATE "C" NOT NULL,
    chain     text COLLATE "C" NOT NULL,
    ended     boolean NOT NULL DEFAULT false,
    completed boolean DEFAULT false,
    result    bytea,
    -- The chain ended, but not with success. The failure of a soft job does not count as such an end.
    spoilt    boolean NOT NULL DEFAULT false,
    -- The chain failed, or was skipped because a job that it depends on had failed.
    blame     boolean NOT NULL DEFAULT false,
    -- The chain belongs to the same run as the job. This row is then deleted when the chain completes: the job's
    -- `upstream` still names the chain, and a claim reads the result from the chain's last job.
    own       boolean NOT NULL DEFAULT false,
    -- The job's condition is `any_failure`: it starts only if a job that it depends on fails, else it is skipped.
    doubts    boolean NOT NULL DEFAULT false
);

-- The primary key is created after this index, not in CREATE TABLE. While the table is small, the planner finds both
-- indexes equally cheap for a query by (space, job) and takes the index that was created last, which must be the
-- primary key.
-- In the primary key `ended` comes before `chain`: when a chain ends, one index entry then shows whether a dependent
-- job still waits for another chain.
CREATE INDEX backstay_job_after_chain ON backstay_job_after (space, chain, job);
ALTER TABLE backstay_job_after ADD PRIMARY KEY (space, job, ended, chain);
CREATE INDEX backstay_job_after_blame ON backstay_job_after (space, job) WHERE blame;

CREATE TABLE backstay_job_unique (
    space text COLLATE "C" NOT NULL,
    key   text COLLATE "C" NOT NULL,
    job   text COLLATE "C" NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (space, key)
);

-- The lanes that may have jobs.
-- `special`: the lane's jobs have a rate or concurrency keys.
-- `runs`: the lane's jobs belong to runs.
-- `floor`: no pending job of the lane has a rank below this, so a claim starts reading at this rank. Claims raise the
-- floor; an enqueue of a job with a lower rank lowers it. The index on pending jobs keeps dead entries of claimed jobs
-- until the next vacuum. Without a floor, each claim would read all dead entries.
CREATE TABLE backstay_job_lane (
    space   text COLLATE "C" NOT NULL,
    lane    bigint  NOT NULL,
    queue   text COLLATE "C" NOT NULL,
    labels  text[]  NOT NULL,
    bucket  text COLLATE "C" NOT NULL,
    special boolean NOT NULL,
    used    bigint  NOT NULL,
    runs    boolean NOT NULL DEFAULT false,
    floor   bigint  NOT NULL DEFAULT -9223372036854775808,
    PRIMARY KEY (space, queue, lane)
);

CREATE TABLE backstay_job_queue (
    space         text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    paused        boolean NOT NULL DEFAULT false,
    rate_interval bigint  NOT NULL DEFAULT 0,
    rate_burst    integer NOT NULL DEFAULT 0,
    bucket        text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (space, name)
);

-- The state of each rate limit (GCRA): `at` is the theoretical arrival time of the next job start.
-- `bucket` is `queue:<name>` for the rate of a queue. For a rate that jobs have themselves, it is `job:<bucket>`: all
-- jobs with this bucket share the limit.
CREATE TABLE backstay_job_rate (
    space  text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    "at"   bigint NOT NULL,
    PRIMARY KEY (space, bucket)
) WITH (fillfactor = 50);

-- The outcome of the last exchange on each worker channel. If the worker resends the exchange, it gets this outcome.
-- `incarnation`: a random id of the worker instance.
-- `lane`: the number of the worker channel (not a lane of jobs).
-- `seq`: the number of the exchange.
-- `fence`: the highest fence of the jobs that the exchange claimed. Fences come from the clock; a later claim takes
-- higher ones than this even if the clock has not advanced.
-- `finished`: which of the acknowledged jobs the worker still owned, as positions in the request.
CREATE TABLE backstay_job_turn (
    space       text COLLATE "C" NOT NULL,
    worker      text COLLATE "C" NOT NULL,
    incarnation text COLLATE "C" NOT NULL,
    lane        integer NOT NULL,
    seq         bigint  NOT NULL,
    fence       bigint  NOT NULL DEFAULT 0,
    finished    integer[] NOT NULL DEFAULT '{}',
    keep_until  bigint  NOT NULL,
    PRIMARY KEY (space, worker, incarnation, lane)
) WITH (fillfactor = 30);

CREATE TABLE backstay_job_log (
    space  text COLLATE "C" NOT NULL,
    job    text COLLATE "C" NOT NULL,
    seq    bigint NOT NULL,
    "at"   bigint NOT NULL,
    stream text   NOT NULL,
    data   bytea  NOT NULL,
    PRIMARY KEY (space, job, seq)
);

CREATE TABLE backstay_job_output (
    space text COLLATE "C" NOT NULL,
    job   text COLLATE "C" NOT NULL,
    key   text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (space, job, key)
);

CREATE TABLE backstay_job_worker (
    space      text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    registered bigint NOT NULL,
    beat       bigint NOT NULL,
    doc        bytea  NOT NULL,
    PRIMARY KEY (space, id)
);

CREATE TABLE backstay_job_tick (
    space text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    "at"  bigint NOT NULL,
    PRIMARY KEY (space, name)
);


-- Workflow runs

-- One row per run. The columns named like job states count the run's jobs in that state.
-- `hard`: the number of failed jobs that are not soft.
-- A transaction that changes the state of a run's job locks the run's row until it commits. So the counts are exact,
-- and the numbers of the run's events have no gaps.
CREATE TABLE backstay_run (
    created    bigint  NOT NULL,
    started    bigint  NOT NULL DEFAULT 0,
    finished   bigint  NOT NULL DEFAULT 0,
    deadline   bigint  NOT NULL DEFAULT 0,
    timeout    bigint  NOT NULL DEFAULT 0,
    keep       bigint  NOT NULL,
    keep_until bigint  NOT NULL DEFAULT 9223372036854775807,
    events     bigint  NOT NULL DEFAULT 0,
    version    bigint  NOT NULL,
    scheduled  integer NOT NULL DEFAULT 0,
    blocked    integer NOT NULL DEFAULT 0,
    pending    integer NOT NULL DEFAULT 0,
    running    integer NOT NULL DEFAULT 0,
    completed  integer NOT NULL DEFAULT 0,
    failed     integer NOT NULL DEFAULT 0,
    cancelled  integer NOT NULL DEFAULT 0,
    skipped    integer NOT NULL DEFAULT 0,
    hard       integer NOT NULL DEFAULT 0,
    cancelling boolean NOT NULL DEFAULT false,
    status     text COLLATE "C" NOT NULL DEFAULT 'queued',
    space      text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    workflow   text COLLATE "C" NOT NULL,
    reason     text COLLATE "C" NOT NULL DEFAULT '',
    doc        bytea   NOT NULL,
    PRIMARY KEY (space, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX backstay_run_workflow ON backstay_run (space, workflow, id);
CREATE INDEX backstay_run_status ON backstay_run (space, status, id);
CREATE INDEX backstay_run_deadline ON backstay_run (space, deadline)
    WHERE deadline > 0 AND finished = 0 AND NOT cancelling;
CREATE INDEX backstay_run_keep ON backstay_run (keep_until);

-- The events of runs. Within a run, events are numbered without gaps. One row holds the events `first` to `last`, which
-- one transaction wrote. With one row per event, writing the event of a claimed job would cost more than claiming it.
--
-- (mark, number) orders the events of all runs. `mark` is at least the id of the transaction that writes the row. A
-- reader returns only rows whose mark is below its pg_snapshot_xmin. So a row that commits later has a higher mark than
-- every row that was already returned, and never sorts before one of them.
--
-- Within a run, marks grow with the events, although transaction ids need not. A mark is set under the lock on the
-- run's row, and it is also at least the id of every transaction that had ended by then.
CREATE TABLE backstay_run_event (
    mark    xid8    NOT NULL,
    number  bigint  GENERATED ALWAYS AS IDENTITY,
    first   bigint  NOT NULL,
    last    bigint  NOT NULL,
    "at"    bigint  NOT NULL,
    space   text COLLATE "C" NOT NULL,
    run     text COLLATE "C" NOT NULL,
    doc     bytea   NOT NULL,
    PRIMARY KEY (space, run, last)
) WITH (toast_tuple_target = 8160);

CREATE INDEX backstay_run_event_order ON backstay_run_event (space, mark, number);

CREATE TABLE backstay_definition (
    version  bigint NOT NULL,
    created  bigint NOT NULL,
    space    text COLLATE "C" NOT NULL,
    workflow text COLLATE "C" NOT NULL,
    digest   text COLLATE "C" NOT NULL,
    doc      bytea  NOT NULL,
    PRIMARY KEY (space, workflow, version)
);

-- The files that jobs produced.
-- `whole`: all parts of the file are stored, so readers see the file. A job has at most one whole file of each name.
CREATE TABLE backstay_artifact (
    size    bigint  NOT NULL,
    created bigint  NOT NULL DEFAULT 0,
    parts   integer NOT NULL DEFAULT 0,
    whole   boolean NOT NULL DEFAULT false,
    space   text COLLATE "C" NOT NULL,
    job     text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    digest  text COLLATE "C" NOT NULL,
    PRIMARY KEY (space, job, name, digest)
);

CREATE TABLE backstay_artifact_part (
    part   integer NOT NULL,
    space  text COLLATE "C" NOT NULL,
    job    text COLLATE "C" NOT NULL,
    name   text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    data   bytea   NOT NULL,
    PRIMARY KEY (space, job, name, digest, part)
);


-- The API tokens of the server
-- owner: tokens with the same owner share their locks, leases and worker ids. Empty: the token has its own.

CREATE TABLE backstay_token (
    created bigint NOT NULL,
    expires bigint NOT NULL,
    space   text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    role    text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    owner   text COLLATE "C" NOT NULL,
    digest  bytea  NOT NULL,
    PRIMARY KEY (space, id)
);

-- Secrets of the namespace, such as the key that signs the names of leases

CREATE TABLE backstay_secret (
    space text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (space, name)
);
