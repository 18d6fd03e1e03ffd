-- Purpose: workflow runs, what happened in them, what they are made from, files that jobs leave, and who may use a server.
--
-- Times are µs of the server's clock. Of a job's `flags`: 128 it belongs to a run of `backstay_run`, 256 its failure holds
-- nobody up (soft). Whoever moves a job of a run holds the run's row at the end of the transaction, so that what the row
-- counts is exact, and its events have no gaps.

ALTER TABLE backstay_job_done
    -- It was skipped because one before it had failed.
    ADD COLUMN blamed boolean NOT NULL DEFAULT false;

-- Jobs of runs go with their runs, and are no part of it.
DROP INDEX backstay_job_done_keep;
CREATE INDEX backstay_job_done_keep ON backstay_job_done (keep_until) WHERE keep_until < 9223372036854775807;

-- Which chains of its own run a job waits for, or waited for, between chr(31).
ALTER TABLE backstay_job ADD COLUMN upstream text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE backstay_job_done ADD COLUMN upstream text COLLATE "C" NOT NULL DEFAULT '';

ALTER TABLE backstay_job_after
    -- The chain did not succeed; that counts as a failure; it is of the same run. Then the job knows it (`upstream`), its
    -- result is read where it is, and the row is gone once it has completed.
    ADD COLUMN spoilt boolean NOT NULL DEFAULT false,
    ADD COLUMN blame  boolean NOT NULL DEFAULT false,
    ADD COLUMN own    boolean NOT NULL DEFAULT false,
    -- The job starts because of a failure, and may be skipped without one.
    ADD COLUMN doubts boolean NOT NULL DEFAULT false;
UPDATE backstay_job_after SET spoilt = true, completed = false WHERE ended AND completed IS NOT TRUE;

-- Whether anything is left to wait for is asked at every end: never by counting.
ALTER TABLE backstay_job_after DROP CONSTRAINT backstay_job_after_pkey, ADD PRIMARY KEY (space, job, ended, chain);
CREATE INDEX backstay_job_after_blame ON backstay_job_after (space, job) WHERE blame;

ALTER TABLE backstay_job_lane
    -- Its jobs belong to runs.
    ADD COLUMN runs boolean NOT NULL DEFAULT false;

-- How many of its jobs are in which state is in the row; `hard`: those that failed and are not soft.
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
CREATE INDEX backstay_run_deadline ON backstay_run (space, deadline) WHERE deadline > 0 AND finished = 0 AND NOT cancelling;
CREATE INDEX backstay_run_keep ON backstay_run (keep_until);

-- What happened in runs. Numbers have no gaps in a run. Over all runs, (mark, number) is an order in which nothing appears
-- behind what could be read before, as long as only marks below the reader's pg_snapshot_xmin are shown: a mark is no
-- less than the transaction's id, so whatever is yet to come lies above. In one run it grows with them, although ids of
-- transactions need not: it is also no less than the id of any transaction that had ended when it was given, and it is
-- given while the run's row is held. What happens in one moment is one row, from `first` to `last`, or a few: a row for
-- each event would cost a job of a run more than its claim.
DROP TABLE backstay_job_event;
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

-- Files that jobs left. `whole`: all of its parts are there, and others may see it. One of each name is whole.
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
