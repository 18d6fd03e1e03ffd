"""The store contract: persistence of jobs and runs. Every method returns an operation that the engine carries out
atomically.

A store only builds operations (`backstay.engine.base.Op`); ports carry them out, so the event loop, the blocking API
and the keeper thread share one code path. The implementations are in `stores/sqlite`, `stores/postgres` and
`stores/redis`. `backstay.testing.conformance.JobSuite` checks any store against this contract.

Rules for every method:
- the clock is the engine's, read inside the operation;
- each change of a job is atomic: no reader sees half of it;
- every operation is idempotent: sending it twice has the effect of sending it once;
- an operation that makes jobs pending returns their number by type (`ready`), so that the caller announces them. If the
  caller dies before that, the jobs are not lost: workers also poll;
- three Pub/Sub channels carry hints, which are sent after the commit and may be lost. `<prefix>:chainc`: a
  chain ended for which a client called `watch`. `<prefix>:jobc`: a job ended for which a client called `watch`, but
  another job continues its chain. `<prefix>:owls`: a running job lost its lease, or its cancellation is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from backstay.engine.base import Micros, Op
from backstay.job.exchange import Delivery, DirectHandoff, ExchangeCommand, ExchangeReply, Renewal, RenewalVerdict
from backstay.job.model import Enqueued, Job, JobResult, LogLine, NewJob, Queue, StartRate, State, Tick, WorkerRecord
from backstay.job.run_model import Artifact, Definition, EventPage, NewRun, Run, RunEvent, RunStatus, TokenRecord
from backstay.runtime.services import Service

ReadHandoff = Callable[[bytes], DirectHandoff | None] | None


class Store(Protocol):
    """The job store. `shards` is fixed when the first job is stored; SQL engines have one shard.

    `channels_per_shard`: how many worker channels a worker should use in each shard, that is, how many exchanges it
    has under way at once. It is two where an exchange crosses the network: while one exchange is under way, the jobs
    that the other claimed run. It is one where all exchanges wait for a single writer.
    `splits_claim_and_ack`: whether, with a backlog, one channel only acknowledges while the other only claims. This
    helps if acknowledgements must wait for the disk and claims need not.
    `announces`: whether `enqueue(announce=True)` announces the jobs to workers in its own transaction, which saves a
    round trip. If not, the caller announces them. An announcement is a hint, which workers get through the hub.
    `announcement_gap`: the shortest useful interval between two announcements, in seconds. 0: announcements cost almost
    nothing.
    `claims_consume_hints`: each announcement has a counter, which limits how many workers respond to it. If True, a
    claim itself takes from the counters (`Claim.hints`), which saves a round trip.
    Both `announces` and `claims_consume_hints` apply only if the hub uses the engine that stores the jobs.
    `read_handoff`: a function that decodes the message by which an enqueue hands a job to a waiting claim
    (`Claim.waiting`). It returns None for an invalid message. The attribute is None if the store does not support
    waiting claims.
    """

    shards: int
    channels_per_shard: int
    splits_claim_and_ack: bool
    announces: bool
    announcement_gap: float
    claims_consume_hints: bool

    @property
    def read_handoff(self) -> ReadHandoff: ...

    # ── enqueue, claim, finish ──

    def enqueue(self, shard: int, jobs: Sequence[NewJob], *, announce: bool = False) -> Op[list[Enqueued]]:
        """Store all jobs, or none if one is invalid (ConfigError). Idempotent by id: an existing job is left unchanged
        and returned with its state. Of concurrent callers with the same unique key, exactly one stores its job. Every
        other caller gets the id of the stored job, marked `deduplicated`. A job whose blockers (`after`) have all ended
        is pending at once. An unknown blocker is a ConfigError. Jobs of one call keep their order.

        announce: tell workers how many jobs of each type became pending. Only jobs with `NewJob.starts_at_once` are
        counted: nothing can delay, block or deduplicate them. The option is ignored if `Store.announces` is False. If
        the operation is sent twice, jobs may be announced twice.
        """
        ...

    def exchange(self, command: ExchangeCommand) -> Op[ExchangeReply]:
        """In one round trip: reap expired leases and make due jobs pending (a bounded number), finish attempts, claim.

        Finish: only the holder of the current lease may finish an attempt. For any other caller the verdict is "stale"
        and nothing changes. When a chain ends, its dependents are released in the same transaction. A dependent is
        released exactly once, however many of its blockers end concurrently. A dependent with `all_success` is skipped
        if a blocker did not complete, and then so are its own dependents with `all_success`.
        Claim: two callers never get the same job. A row locked by another claim is skipped, not waited for. A
        claim names groups of queues. Of all jobs in a group's queues, the one with the smallest rank (computed from due
        time and priority) comes first. A job that cannot be claimed because of its labels,
        concurrency key, rate or paused queue never delays the jobs after it (no head-of-line blocking). The cost does
        not grow with the backlog.
        Idempotency: for each (worker, incarnation, channel) the shard stores the last seq with its verdicts and claims,
        for 2 × lease. If that seq is sent again, the reply contains the stored verdicts and those claimed jobs whose
        leases are still current, and these leases are renewed. A command with a lower seq is rejected as `stale`; one
        with a higher seq is executed. A command that arrives after `not_after` is rejected as `expired`.
        Waiting claims: a claim with `waiting` that finds no job may wait in the shard. A later `enqueue` may answer the
        claim, once, with a job that no other pending job precedes: it publishes that job to the claim's inbox. Because
        messages may be lost, the job is also stored as the reply to the claim's seq. An exchange that names this seq in
        `waiting_seq` gets the stored reply, marked `handed_off`.
        """
        ...

    def renew(self, shard: int, worker: str, lease: Micros, leases: Sequence[Renewal]) -> Op[list[RenewalVerdict]]:
        """Renew leases of one worker for `lease` µs from now. A lease can be renewed only by its owner and only until
        it is reaped or finished; an ended lease is never restored.
        """
        ...

    def reap(self, shard: int, limit: int = 1000) -> Op[dict[str, int]]:
        """End the attempts whose lease has expired. Such an attempt counts as one of the job's attempts, and the cause
        is stored as its error. The job becomes pending; failed, if its attempts are used up; or cancelled, if that was
        requested. Also make scheduled jobs that are due pending. Returns the number of jobs that became pending, by
        type. Any number of processes may call it at once.
        """
        ...

    def read_outbox(self, shard: int, limit: int = 1000) -> Op[list[Delivery]]:
        """Return the outbox: ended chains that jobs in other shards still wait for."""
        ...

    def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> Op[dict[str, int]]:
        """Chains of other shards have ended: remove them from the blockers of the jobs in this shard that wait for
        them. Idempotent, because the blockers are a set. Returns the number of jobs that became pending, by type.
        """
        ...

    def ack_deliveries(self, shard: int, deliveries: Sequence[Delivery]) -> Op[None]:
        """Delete entries from this shard's outbox after they were delivered."""
        ...

    # ── administration ──

    def cancel(self, job: str, reason: str) -> Op[State | None]:
        """Cancel a job and return its state; None: no such job. A job that does not run is cancelled at once, and its
        dependents are skipped. For a running job `cancel_requested` is set, and the reply to its worker's next renewal
        says so. A job in a final state is left unchanged.
        """
        ...

    def trigger(self, job: str) -> Op[State | None]:
        """Retry a job now and return its state; None: no such job. A scheduled, failed, cancelled or skipped job
        becomes pending (blocked, if a blocker has not ended), with its attempts counted from zero. Dependents that were
        skipped because of this job wait for it again. Two kinds of jobs are left unchanged: a job whose run is being
        cancelled, and a job of a run that would be skipped again at once. The latter happens with `all_success` if a
        blocker did not succeed and was not retried, and with `any_failure` if no blocker failed.
        """
        ...

    def purge(self, state: State, *, queue: str = "", limit: int = 1000) -> Op[int]:
        """Delete up to `limit` jobs in the final state `state`, oldest first. Returns how many. Jobs of a run are not
        deleted: the pruner deletes them together with their run.
        """
        ...

    def pause(self, queue: str, *, paused: bool) -> Op[None]:
        """Pause or resume a queue. No job of a paused queue is claimed; running jobs continue."""
        ...

    def limit_queue(self, queue: str, rate: StartRate | None) -> Op[None]:
        """Set the rate at which jobs of a queue start; None: unlimited."""
        ...

    # ── queries ──

    def get(self, job: str) -> Op[Job | None]: ...

    def watch(self, job: str, *, chain: bool = False) -> Op[Job | None]:
        """Return the job (with `chain`: the last job of its chain), and from now on publish its end. Both happen
        atomically, so no end between them is missed.
        """
        ...

    def list_jobs(
        self,
        *,
        state: State | None = None,
        queue: str = "",
        type: str = "",  # noqa: A002 - the name used everywhere
        run: str = "",
        before: str = "",
        limit: int = 50,
    ) -> Op[list[Job]]:
        """Return jobs, newest first (by id); `before` is the last id of the previous page. The cost is bounded by
        `limit`, not by the backlog.
        """
        ...

    def results(self, run: str, *, before: str = "", limit: int = 1000) -> Op[list[JobResult]]:
        """Return states and results of a run's jobs, in pages like those of `list_jobs(run=…)`, but much cheaper."""
        ...

    def queues(self) -> Op[list[Queue]]: ...

    def next_due(self, shard: int) -> Op[Micros | None]:
        """Return the µs until a job becomes due or a lease expires; None if no job is scheduled or running."""
        ...

    # ── logs and outputs ──

    def append_log(self, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> Op[bool]:
        """Store log lines (time, stream, data) with sequence numbers from `first` on. Lines whose number is already
        stored are left unchanged. False: the lease is not current, and nothing was stored. `fence` 0 skips this check,
        for a server that has checked the lease of its remote worker itself.
        """
        ...

    def read_log(self, job: str, after: int = 0, limit: int = 1000) -> Op[list[LogLine]]: ...

    def put_outputs(self, job: str, fence: int, outputs: dict[str, str]) -> Op[bool]:
        """Add outputs, which are strings by key, to those that the job already has. False: the lease is not current."""
        ...

    def get_outputs(self, job: str) -> Op[dict[str, str]]: ...

    # ── workers, cron, retention ──

    def heartbeat(self, worker: WorkerRecord) -> Op[None]:
        """Register a worker or refresh its record. The store sets the times `registered` and `beat` of the record."""
        ...

    def unregister_worker(self, worker: str) -> Op[None]: ...

    def workers(self) -> Op[list[WorkerRecord]]:
        """Return all workers with a heartbeat within the last day."""
        ...

    def ticks(self, names: Sequence[str]) -> Op[dict[str, Micros]]:
        """Return when each cron entry last ticked. An entry that has never ticked is left out of the reply. The current
        time is stored as its last tick, so that it does not catch up on times before it existed.
        """
        ...

    def tick(self, tick: Tick) -> Op[bool]:
        """Enqueue the job of a cron entry for one due time. Of any number of schedulers that try this, exactly one
        stores the job and gets True.
        """
        ...

    def prune(self, shard: int, keep: int, limit: int = 1000) -> Op[int]:
        """Delete jobs in a final state that are past their retention, and the oldest completed jobs beyond the newest
        `keep`. Also delete what has expired beside them, such as unique keys whose window has ended. Returns how many
        jobs; `limit` or more means that something may be left, so the caller calls again.
        """
        ...

    # ── runs ──
    # Every operation that changes a job of a run updates the run's counts (its jobs by state) and appends to its events
    # in the same transaction. When the last job of a run ends, the run finishes. Its status is then cancelled, if its
    # cancellation was requested; failure, if a job that is not `soft` failed; else success. Retrying a job (`trigger`)
    # reopens the run. Two hints are published after the commit. On `<prefix>:events`, for each changed run: `<run>:<seq
    # of its last event>`. On `<prefix>:runc`, for each finished run: its id.

    def start_run(self, run: NewRun) -> Op[Run]:
        """Store the run and all of its jobs, or nothing (ConfigError: a blocker outside the run, or more than
        LARGEST_RUN jobs). Idempotent by id: an existing run is left unchanged and returned. A run without jobs succeeds
        at once. Jobs are stored as by `enqueue`; unique keys are rejected.
        """
        ...

    def get_run(self, run: str, *, doc: bool = True) -> Op[Run | None]:
        """Return a run. doc=False leaves out its document, which may be large and never changes."""
        ...

    def list_runs(
        self, *, workflow: str = "", status: RunStatus | None = None, before: str = "", limit: int = 50
    ) -> Op[list[Run]]:
        """Return runs, newest first (by id), without `doc`. The cost is bounded by `limit`."""
        ...

    def cancel_run(self, run: str, reason: str) -> Op[Run | None]:
        """Cancel a run: jobs that do not run are cancelled at once, the cancellation of running jobs is requested, and
        jobs added later (`Finish.next`, `adds`) are stored as cancelled. A finished run is left unchanged.
        """
        ...

    def rerun_failed(self, run: str) -> Op[Run | None]:
        """Retry all failed and cancelled jobs of a finished run in one transaction; dependents that were skipped
        because of them wait for them again. An unfinished run, or one without such jobs, is left unchanged.
        """
        ...

    def run_events(self, run: str, after: int = 0, limit: int = 1000) -> Op[list[RunEvent]]: ...

    def events(self, shard: int, after: str = "", limit: int = 1000) -> Op[EventPage]:
        """Return events of all runs after a cursor; "": from the oldest stored event on; "$": from now on. No event is
        ever added before a cursor that was returned, so a reader misses none.
        """
        ...

    def check_runs(self, shard: int, limit: int = 100) -> Op[list[str]]:
        """Compare the stored job counts (by state) of unfinished runs with the jobs, and repair wrong counts. Also
        cancel runs past their deadline. Returns the ids of the repaired runs: each indicates a bug in the store.
        """
        ...

    # ── definitions, artifacts, tokens ──

    def put_definition(self, workflow: str, digest: str, doc: bytes) -> Op[Definition]:
        """Store a definition as the workflow's next version and return that version. If the newest version has the
        same digest, store nothing and return the newest version.
        """
        ...

    def get_definition(self, workflow: str, version: int = 0) -> Op[Definition | None]:
        """Return a version of a workflow's definition; 0: the newest."""
        ...

    def list_definitions(self, *, after: str = "", limit: int = 100) -> Op[list[Definition]]:
        """Return the newest version of each definition, sorted by name, without `doc`. `after`: the last name of the
        previous page.
        """
        ...

    def put_artifact(self, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> Op[bool]:
        """Store one part of an artifact; parts are sent in order from 0 on. Once its last part is stored, the artifact
        becomes visible and replaces one of the same name. A part that exists is left unchanged. False: the lease is not
        current (`fence` 0 skips the check).
        """
        ...

    def list_artifacts(self, job: str) -> Op[list[Artifact]]: ...

    def read_artifact(self, job: str, name: str, part: int) -> Op[bytes | None]:
        """Return one part of an artifact; None if the artifact or this part does not exist."""
        ...

    def put_token(self, token: TokenRecord) -> Op[None]: ...

    def drop_token(self, token: str) -> Op[bool]: ...

    def tokens(self) -> Op[list[TokenRecord]]:
        """Return all access tokens of the server that have not expired."""
        ...

    def put_secret(self, name: str, value: bytes) -> Op[bytes]:
        """Store a secret of the namespace, such as the key that signs the names of leases, unless it has one with this
        name. Returns the stored one: of concurrent callers, all get the same.
        """
        ...


#: The job store of a Backstay; `assembly/` provides the one of its engine.
JOB_STORE: Service[Store] = Service("job store", survives_fork=True)
