-- Purpose: the tables of Backstay: lock and idempotency records, hints, jobs, workflow runs, artifacts and API tokens.
--
-- Times are µs of the server's clock. In the job and run tables `''` and 0 mean "none".


-- Records

-- One record of a room (locks, idempotency keys) for each name. A name is bytes: it holds any text, in byte order.
-- `doc` is NULL from the first request for a name to the end of that transaction. `keep_until` is rounded up to whole
-- hours: an index column that changed with every write would prevent HOT updates. `body` is a large value that
-- belongs to the record and that the room's machine does not read.
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

-- How many workers may still respond to an announcement of work. Each announcement has one row, for a minute.
CREATE TABLE backstay_hint_counter (
    hint       text   PRIMARY KEY,
    remaining  bigint NOT NULL,
    keep_until bigint NOT NULL
);

CREATE INDEX backstay_hint_counter_sweep ON backstay_hint_counter (keep_until);


-- Jobs
--
-- `backstay_job` holds the jobs that have not ended, `backstay_job_done` holds those that have. The first table is as
-- small as the backlog: vacuuming it is cheap, and ended jobs do not slow down a claim.
--
-- `lane` is a hash of (space, queue, labels, rate bucket, keyed). Claims take the pending jobs of a lane by `rank`,
-- then by id. `fence` is the fence of the lease, and 0 unless the job is running. `state` is a state of the API or
-- `parked`: the job is pending, but its concurrency key was full when a claim met it.
-- `flags`: 1 a client watches the job, 2 a client watches its chain, 4 other jobs wait for its chain, 8 unique until it
-- is done, 16 unique until it starts, 32 has a concurrency key, 64 waits or waited for other jobs, 128 belongs to a run
-- of `backstay_run`, 256 its failure does not hold up other jobs (soft).
-- `upstream` lists the chains of the same run that the job waits for or waited for, separated by chr(31).

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

-- Every enqueue and every claim maintains these indexes: there are as few as possible.
CREATE INDEX backstay_job_ready ON backstay_job (lane, rank, id) WHERE state = 'pending';
CREATE INDEX backstay_job_lease ON backstay_job (space, until) WHERE state = 'running';
CREATE INDEX backstay_job_due ON backstay_job (space, due, id) WHERE state = 'scheduled';
CREATE INDEX backstay_job_key ON backstay_job (space, key, state, lane, rank, id) WHERE key <> '';
CREATE INDEX backstay_job_chain ON backstay_job (space, chain) WHERE chain <> id;
CREATE INDEX backstay_job_run ON backstay_job (space, run, id) WHERE run <> '';

-- The columns of `backstay_job`, and how the job ended. `blamed`: it was skipped because a job before it had failed.
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
-- Without the jobs of runs: they are deleted with their run.
CREATE INDEX backstay_job_done_keep ON backstay_job_done (keep_until) WHERE keep_until < 9223372036854775807;

-- The chains that a job waits for or waited for, and how they ended.
CREATE TABLE backstay_job_after (
    space     text COLLATE "C" NOT NULL,
    job       text COLLATE "C" NOT NULL,
    chain     text COLLATE "C" NOT NULL,
    ended     boolean NOT NULL DEFAULT false,
    completed boolean DEFAULT false,
    result    bytea,
    -- The chain did not succeed.
    spoilt    boolean NOT NULL DEFAULT false,
    -- The end of the chain counts as a failure.
    blame     boolean NOT NULL DEFAULT false,
    -- The chain belongs to the same run. The job's `upstream` names it, a claim reads its result from its own row, and
    -- this row is deleted when the chain completes.
    own       boolean NOT NULL DEFAULT false,
    -- The job starts because of a failure, and may be skipped when there is none.
    doubts    boolean NOT NULL DEFAULT false
);

-- The primary key is created after this index, not in CREATE TABLE: for (space, job) the planner finds both indexes
-- equally cheap while the table is small, and takes the newer one. In the primary key `ended` comes before `chain`: each
-- end of a chain asks whether its dependents still wait for another, and one index entry answers that without a count.
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

-- The lanes that may have jobs. `special`: a rate or concurrency keys apply. `runs`: its jobs belong to runs.
-- `floor`: the last claim found no pending job with a lower rank, so the next one starts there. The index keeps the
-- entries of claimed jobs until the next vacuum, and without a floor each claim would step over all of them.
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

-- How far each rate is used up (GCRA). `bucket` is `job:<bucket>` or `queue:<name>`.
CREATE TABLE backstay_job_rate (
    space  text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    "at"   bigint NOT NULL,
    PRIMARY KEY (space, bucket)
) WITH (fillfactor = 50);

-- The outcome of the last exchange on each channel of each worker. `finished`: the positions of the finishes that
-- counted. `fence`: the last fence that the exchange gave, so that fences grow even while the clock stands still.
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

-- The row counts the run's jobs by state. `hard`: the jobs that failed and are not soft. A transaction that moves a job
-- of a run holds the run's row until it ends: the counts are exact, and the events have no gaps.
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

-- The events of runs. Within a run their numbers have no gaps. One row holds the events `first` to `last`, which one
-- transaction wrote: a row for each event would cost a job of a run more than its claim.
-- (mark, number) orders the events of all runs. A reader shows only marks below its pg_snapshot_xmin, and then no event
-- appears later before one that the reader has shown: a mark is at least the id of its transaction, so the events still
-- to come have higher marks. Within a run marks grow with the events, although transaction ids need not: a mark is also
-- at least the id of every transaction that had ended when the mark was given, and it is given while the transaction
-- holds the run's row.
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

-- The files that jobs leave. `whole`: all parts are stored, and readers see the file. One file of each name is whole.
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

CREATE TABLE backstay_token (
    created bigint NOT NULL,
    expires bigint NOT NULL,
    space   text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    role    text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    digest  bytea  NOT NULL,
    PRIMARY KEY (space, id)
);
