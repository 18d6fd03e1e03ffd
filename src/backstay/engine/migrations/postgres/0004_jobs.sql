-- Purpose: jobs. Those that have not ended are rows of `backstay_job`, those that have of `backstay_job_done`: the first
-- stays as small as the backlog, so that vacuuming it is cheap, and nothing that ended slows a claim down.
--
-- Times are µs of the server's clock. `''` and 0 mean "none". `lane` is a hash of (space, queue, labels, rate bucket,
-- keyed): pending jobs of one lane are handed out by `rank`, then id. `fence` is that of the lease, 0 unless running.
-- `state` is as the API says, and `parked`: pending, but its concurrency key was full when it was met.
-- `flags`: 1 the job is watched, 2 its chain is, 4 others wait for its chain, 8 unique until done, 16 unique until it
-- starts, 32 has a concurrency key, 64 waits or waited for others.

-- Numbers come first: where each of them lies in a row is known without looking at the texts before it.
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
    PRIMARY KEY (space, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);

-- Each of these is looked at with every job that is stored and every one that is claimed: as few as will do.
CREATE INDEX backstay_job_ready ON backstay_job (lane, rank, id) WHERE state = 'pending';
CREATE INDEX backstay_job_lease ON backstay_job (space, until) WHERE state = 'running';
CREATE INDEX backstay_job_due ON backstay_job (space, due, id) WHERE state = 'scheduled';
CREATE INDEX backstay_job_key ON backstay_job (space, key, state, lane, rank, id) WHERE key <> '';
CREATE INDEX backstay_job_chain ON backstay_job (space, chain) WHERE chain <> id;
CREATE INDEX backstay_job_run ON backstay_job (space, run, id) WHERE run <> '';

CREATE TABLE backstay_job_done (
    LIKE backstay_job INCLUDING DEFAULTS,
    finished    bigint  NOT NULL,
    keep_until  bigint  NOT NULL,
    followed_by text COLLATE "C" NOT NULL DEFAULT '',
    result      bytea,
    PRIMARY KEY (space, id)
);

CREATE INDEX backstay_job_done_keep ON backstay_job_done (keep_until);
CREATE INDEX backstay_job_done_state ON backstay_job_done (space, state, id) WHERE state <> 'completed';
CREATE INDEX backstay_job_done_chain ON backstay_job_done (space, chain, id) WHERE chain <> id;
CREATE INDEX backstay_job_done_run ON backstay_job_done (space, run, id) WHERE run <> '';

-- Which chains a job waits for, or waited for, and what they came to.
CREATE TABLE backstay_job_after (
    space     text COLLATE "C" NOT NULL,
    job       text COLLATE "C" NOT NULL,
    chain     text COLLATE "C" NOT NULL,
    ended     boolean NOT NULL DEFAULT false,
    -- NULL: it did not, and that no longer matters, for somebody started the job all the same.
    completed boolean DEFAULT false,
    result    bytea,
    PRIMARY KEY (space, job, chain)
);

CREATE INDEX backstay_job_after_chain ON backstay_job_after (space, chain, job);

CREATE TABLE backstay_job_unique (
    space text COLLATE "C" NOT NULL,
    key   text COLLATE "C" NOT NULL,
    job   text COLLATE "C" NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (space, key)
);

-- The lanes in which there may be jobs. `special`: a rate or concurrency keys apply.
CREATE TABLE backstay_job_lane (
    space   text COLLATE "C" NOT NULL,
    lane    bigint  NOT NULL,
    queue   text COLLATE "C" NOT NULL,
    labels  text[]  NOT NULL,
    bucket  text COLLATE "C" NOT NULL,
    special boolean NOT NULL,
    used    bigint  NOT NULL,
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

-- What the last step of each lane of each worker came to. `finished`: places of the finishes that counted; `fence`: the
-- last that it gave, so that fences grow even while the clock stands still.
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

-- What happened in a run, in order; written for jobs that belong to one.
CREATE TABLE backstay_job_event (
    space text COLLATE "C" NOT NULL,
    run   text COLLATE "C" NOT NULL,
    seq   bigint NOT NULL,
    "at"  bigint NOT NULL,
    kind  text   NOT NULL,
    job   text COLLATE "C" NOT NULL,
    doc   bytea  NOT NULL,
    PRIMARY KEY (space, run, seq)
);
