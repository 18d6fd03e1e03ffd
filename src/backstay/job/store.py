"""The store contract: persistence of jobs and runs. Every method returns an operation that the engine carries out
atomically.

A store only builds operations (`backstay.engine.base.Op`); ports carry them out, so the event loop, the blocking API
and the keeper thread share one path. The implementations are in `stores/sqlite`, `stores/postgres` and `stores/redis`,
with a `.sql` or `.lua` file per method. `backstay.testing.conformance.JobSuite` checks any store against this contract.

Rules for every method:
- the clock is the engine's, read inside the operation;
- each change of a job is atomic: no reader sees half of it;
- every operation is idempotent and may be sent twice, except `append_log` without its own sequence numbers;
- an operation that makes jobs pending returns their number by type (`ready`), so that the caller announces them. If the
  caller dies first, nothing is lost: workers also poll;
- the end of a watched chain is published on `<prefix>:chainc`; the end of a watched job whose chain continues on
  `<prefix>:jobc`; a running job whose lease ended or whose cancellation is requested on `<prefix>:owls`. These messages
  are sent after the commit and may be lost: they are hints, not state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from backstay.engine.base import Micros, Op
from backstay.job.model import (
    Delivery,
    DirectHandoff,
    Enqueued,
    ExchangeCommand,
    ExchangeReply,
    Job,
    JobResult,
    LogLine,
    NewJob,
    Queue,
    Rate,
    Renewal,
    RenewalVerdict,
    State,
    Tick,
    Worker,
)
from backstay.job.run_model import Artifact, Definition, EventPage, NewRun, Run, RunEvent, RunStatus, TokenRecord
from backstay.runtime.services import Service

ReadHandoff = Callable[[bytes], DirectHandoff | None] | None


class Store(Protocol):
    """The job store. `shards` is fixed when the first job is stored; SQL engines have one shard.

    `channels_per_shard`: how many exchanges of one worker are useful at once in a shard. Two where an exchange crosses
    the network, so that one exchange's jobs run while the other travels; one where all exchanges wait for one writer.
    `splits_claim_and_ack`: with a backlog, one channel acknowledges while the other claims: acknowledgements must wait
    for the disk, claims need not.
    `announces`: `enqueue(announce=True)` announces the jobs in its own transaction; else the caller announces them.
    `announcement_gap`: the shortest useful interval of such announcements, in seconds; 0: they cost almost nothing.
    `claims_consume_hints`: a claim takes from the announcement counters itself. These apply only if hints travel
    through the engine that stores the jobs: one round trip instead of two.
    `read_handoff`: decodes a message to a waiting claim's inbox (`Claim.waiting`), None for an invalid message. It is
    itself None if the store does not support waiting claims.
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
        and returned with its state. Of concurrent callers with the same unique key, exactly one stores its job; the
        others get that job's id with `deduplicated`. A job whose blockers (`after`) have all ended is pending at once;
        an unknown blocker is a ConfigError. Jobs of one call keep their order.
        `announce`: if the store `announces`, jobs that start at once (`NewJob.starts_at_once`) are announced by type,
        with a counter, once they can be claimed. Sent twice, they may be announced twice.
        """
        ...

    def exchange(self, command: ExchangeCommand) -> Op[ExchangeReply]:
        """Reap expired leases, promote due jobs (both bounded), finish attempts, then claim: one round trip.

        Finish: only the current lease may finish an attempt; otherwise the verdict is stale and nothing changes. Ending
        a chain releases its dependents in the same transaction, each exactly once, however many of its blockers end
        concurrently; with `all_success`, a blocker that did not complete skips its dependents, transitively.
        Claim: two callers never get the same job; a row locked by another claim is skipped, not waited for. Smallest
        rank first over all queues of a group. A job that its labels, concurrency key, rate or paused queue exclude
        never hides one behind it (no head-of-line blocking). The cost does not grow with the backlog.
        Idempotency: for each (worker, incarnation, channel) the shard stores the last seq with its verdicts and claims,
        for 2 × lease. The same seq again returns the same verdicts and those of its jobs still under the same leases,
        renewed. A lower seq is `stale`, a higher one is executed. Past `not_after`: `expired`.
        Waiting claims: a claim with `waiting` that finds nothing may wait in the shard. `enqueue` answers it once, with
        a job that no other pending job precedes, and publishes it to the inbox. Because messages may be lost, the
        handoff also becomes the reply to that seq, and to a later exchange whose `waiting_seq` names it: `handed_off`.
        """
        ...

    def renew(self, shard: int, worker: str, lease: Micros, leases: Sequence[Renewal]) -> Op[list[RenewalVerdict]]:
        """Renew leases for `lease` µs from now, all of a worker's in one call. Only a lease's owner can renew it, and
        only until it is reaped or finished; an ended lease is never restored. Idempotent.
        """
        ...

    def reap(self, shard: int, limit: int = 1000) -> Op[dict[str, int]]:
        """Return jobs with an expired lease to pending (the attempt counts, the cause is recorded), to failed if their
        attempts are used up, or to cancelled if a cancellation was requested; make due jobs pending. Returns the number
        of jobs that became pending, by type. Safe to run concurrently in any number of processes.
        """
        ...

    def undelivered(self, shard: int, limit: int = 1000) -> Op[list[Delivery]]:
        """Return the outbox: ended chains that jobs in other shards still wait for."""
        ...

    def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> Op[dict[str, int]]:
        """Remove ended blockers from jobs in this shard. Idempotent: a blocker is removed from a set. Returns the
        number of jobs that became pending, by type.
        """
        ...

    def delivered(self, shard: int, deliveries: Sequence[Delivery]) -> Op[None]:
        """Delete delivered entries from the outbox."""
        ...

    # ── administration ──

    def cancel(self, job: str, reason: str) -> Op[State | None]:
        """Cancel a job and return its state. Not running: it is cancelled at once and its dependents are skipped.
        Running: `cancel_requested` is set, and the worker's next renewal reports it. A final job is left unchanged.
        None: no such job.
        """
        ...

    def trigger(self, job: str) -> Op[State | None]:
        """Retry a job now and return its state. A scheduled, failed, cancelled or skipped job becomes pending with all
        its attempts (blocked if a blocker has not ended); dependents that were skipped because of it wait for it again.
        A job of a run is left unchanged while its run is being cancelled, and if it would be skipped again at once:
        with `all_success`, a blocker did not succeed and was not retried; with `any_failure`, no blocker failed.
        """
        ...

    def purge(self, state: State, *, queue: str = "", limit: int = 1000) -> Op[int]:
        """Delete up to `limit` jobs in a final state, oldest first. Returns how many."""
        ...

    def pause(self, queue: str, *, paused: bool) -> Op[None]:
        """Pause or resume a queue. No job of a paused queue is claimed; running jobs continue."""
        ...

    def limit_queue(self, queue: str, rate: Rate | None) -> Op[None]:
        """Set the rate at which jobs of a queue start; None: unlimited."""
        ...

    # ── queries ──

    def get(self, job: str) -> Op[Job | None]: ...

    def watch(self, job: str, *, chain: bool = False) -> Op[Job | None]:
        """Return the job, or the last one of its chain, and publish its end from now on. Atomic: no end is missed
        between the read and the start of the watch.
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
        """Return the results of a run's jobs so far, paged like `list_jobs(run=…)` but much cheaper."""
        ...

    def queues(self) -> Op[list[Queue]]: ...

    def next_due(self, shard: int) -> Op[Micros | None]:
        """Return the µs until a job becomes due or a lease expires; None if neither is to come."""
        ...

    # ── logs and outputs ──

    def append_log(self, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> Op[bool]:
        """Store chunks (time, stream, data) with sequence numbers from `first` on. Existing numbers are left unchanged,
        so sending twice is safe. False: the lease is not current and nothing was written. `fence` 0 skips the check: a
        server that writes for a worker has made it.
        """
        ...

    def read_log(self, job: str, after: int = 0, limit: int = 1000) -> Op[list[LogLine]]: ...

    def put_outputs(self, job: str, fence: int, outputs: dict[str, str]) -> Op[bool]:
        """Add outputs by key to the existing ones. False: the lease is not current."""
        ...

    def get_outputs(self, job: str) -> Op[dict[str, str]]: ...

    # ── workers, cron, retention ──

    def heartbeat(self, worker: Worker) -> Op[None]:
        """Register or refresh a worker. The engine sets `registered` and `beat`."""
        ...

    def unregister_worker(self, worker: str) -> Op[None]: ...

    def workers(self) -> Op[list[Worker]]:
        """Return all workers with a heartbeat within the last day."""
        ...

    def ticks(self, names: Sequence[str]) -> Op[dict[str, Micros]]:
        """Return when each cron entry last ticked; an entry that never did is absent, and is stored as of now."""
        ...

    def tick(self, tick: Tick) -> Op[bool]:
        """Enqueue a cron entry's job. Of any number of concurrent schedulers exactly one stores it and gets True."""
        ...

    def prune(self, shard: int, keep: int, limit: int = 1000) -> Op[int]:
        """Delete final jobs past their retention and the oldest completed ones above `keep`. Returns how many."""
        ...

    # ── runs ──
    # Every operation that changes a job of a run updates the run's counts and appends to its events in the same
    # transaction. When its last job ends, the run finishes: cancelled, if that was requested; failure, if a job that is
    # not `soft` failed; else success. Retrying a job (`trigger`) reopens the run. After the commit,
    # `<run>:<seq of its last event>` is published on `<prefix>:events`, once for each run that the operation changed,
    # and the id of each run that it finished on `<prefix>:runc`.

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
        """Cancel a run: jobs that do not run are cancelled at once, cancellation of running ones is requested, and jobs
        added later (`Finish.next`, `adds`) are stored as cancelled. A finished run is left unchanged.
        """
        ...

    def rerun_failed(self, run: str) -> Op[Run | None]:
        """Retry all failed and cancelled jobs of a finished run in one transaction; dependents that were skipped
        because of them wait again. A run without such jobs, or not finished, is left unchanged.
        """
        ...

    def run_events(self, run: str, after: int = 0, limit: int = 1000) -> Op[list[RunEvent]]: ...

    def events(self, shard: int, after: str = "", limit: int = 1000) -> Op[EventPage]:
        """Return events of all runs after a cursor; "": from the oldest stored event on; "$": from now on. Pages are
        complete: no event appears later before a returned cursor.
        """
        ...

    def check_runs(self, shard: int, limit: int = 100) -> Op[list[str]]:
        """Compare the counts of unfinished runs with their jobs and repair differences; cancel runs past their
        deadline. Returns the ids of repaired runs: any id indicates a bug.
        """
        ...

    # ── definitions, artifacts, tokens ──

    def put_definition(self, workflow: str, digest: str, doc: bytes) -> Op[Definition]:
        """Store a definition as the next version and return it; return the newest one if it has the same digest."""
        ...

    def get_definition(self, workflow: str, version: int = 0) -> Op[Definition | None]:
        """Return a version of a definition; 0: the newest."""
        ...

    def list_definitions(self, *, after: str = "", limit: int = 100) -> Op[list[Definition]]:
        """Return the newest version of each definition, by name, without `doc`."""
        ...

    def put_artifact(self, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> Op[bool]:
        """Store one part of an artifact; parts are sent in order from 0 on. The artifact becomes visible with its last
        part and replaces one of the same name. An existing part is left unchanged. False: the lease is not current
        (`fence` 0 skips the check).
        """
        ...

    def list_artifacts(self, job: str) -> Op[list[Artifact]]: ...

    def read_artifact(self, job: str, name: str, part: int) -> Op[bytes | None]:
        """Return one part of an artifact; None if there is none."""
        ...

    def put_token(self, token: TokenRecord) -> Op[None]: ...

    def drop_token(self, token: str) -> Op[bool]: ...

    def tokens(self) -> Op[list[TokenRecord]]:
        """Return all tokens that have not expired."""
        ...


#: The job store of a Backstay; `assembly/` provides the one of its engine.
JOB_STORE: Service[Store] = Service("job store", survives_fork=True)
