"""The store contract: what remembers jobs. Each verb is an operation that the engine carries out as one atomic step.

A store makes operations (`backstay.engine.base.Op`) and does nothing by itself; ports carry them out, so that the event
loop, the blocking API and the keeper thread use one door. `sqlite.py`, `postgres.py` and `redis.py` implement it, one
`.sql` or `.lua` file for each verb. `backstay.testing.conformance.JobSuite` holds any store to this.

Rules that hold for every verb:
- time is the engine's, read inside the step;
- a job's state changes in one verb only; no reader ever sees half of it;
- verbs that may be sent twice say so; all do except `append_log` without a sequence of its own;
- whatever makes jobs pending answers how many of which type (`ready`), so that the caller can announce them. A caller
  that dies before loses nothing: workers look by themselves;
- a chain that is watched and ends is announced on `<prefix>:chainc`, a watched job that ended while its chain goes on
  on `<prefix>:jobc`; a running job whose lease ended or whose cancellation is wanted on `<prefix>:owls`. After the
  commit, and perhaps never: hints, not truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from backstay.engine.base import Micros, Op
from backstay.job.model import (
    Delivery,
    Enqueued,
    Handed,
    Job,
    JobResult,
    LogLine,
    NewJob,
    Queue,
    Rate,
    Renewal,
    RenewalVerdict,
    State,
    StepCommand,
    StepReply,
    Tick,
    Worker,
)
from backstay.job.run_model import Artifact, Definition, EventPage, NewRun, Run, RunEvent, RunStatus, TokenRecord

ReadHanded = Callable[[bytes], Handed | None] | None


class Store(Protocol):
    """Where jobs live. `shards` is fixed when the first job is stored; SQL engines have one.

    `lanes` is how many steps of one worker are worth having under way in a shard at once: two where a step travels, so
    that one's jobs run meanwhile; one where all steps wait for the same writer anyway.
    `parts`: where much has ended and much is there, one of two lanes tells and the other asks, since what is handed out
    need not wait for the disk, and what has ended must.
    `announces`: `enqueue` with `tell` announces jobs in its own step; without, `tell` changes nothing, and whoever
    enqueues announces them. `gap`: how far apart (seconds) such announcements are worth their price; 0: they cost next
    to nothing. `takes`: a claim takes from the counters of announcements. All of it only where hints travel through the
    engine that keeps the jobs: one trip instead of two.
    `read_handed`: a claim that finds nothing may stay there (`Claim.stand`), whoever enqueues answers it, and this
    reads what comes to its inbox: None for what cannot be read. Where claims do not stay, it is None itself.
    """

    shards: int
    lanes: int
    parts: bool
    announces: bool
    gap: float
    takes: bool

    @property
    def read_handed(self) -> ReadHanded: ...

    # ── work ──

    def enqueue(self, shard: int, jobs: Sequence[NewJob], *, tell: bool = False) -> Op[list[Enqueued]]:
        """All of them, or none when one cannot be (ConfigError). By id: a job that exists already is left as it is and
        reported with its state, so sending twice is safe. Of many callers with one unique key, one makes its job; the
        others get that job's id with `deduplicated`. A job whose blockers (`after`) all ended already starts at once;
        an unknown blocker is a ConfigError. Jobs of one call keep their order.
        `tell`: those that start at once (`NewJob.starts_at_once`) are announced by their type, with a counter, where
        the store `announces`: whoever hears of them finds them. Sent twice, they may be announced twice.
        """
        ...

    def step(self, command: StepCommand) -> Op[StepReply]:
        """Reap what has run out, make due what is due (both bounded), finish, then claim: one round trip.

        Finish: only the current lease counts; else the verdict is stale and nothing changes. Ending a chain releases
        those who wait for it in the same step, each exactly once, however many of its blockers end at the same moment
        elsewhere; with `all_success`, a blocker that did not complete skips its dependents (and theirs).
        Claim: two callers never get the same job; a row that somebody else is taking is skipped, not waited for.
        Smallest rank first over all queues of a group; a job whose labels, concurrency key, rate or paused queue forbid
        it never hides one behind it. Nothing here grows with the backlog.
        Lanes: the shard remembers for each (worker, incarnation, lane) the last seq with its verdicts and claims, for
        2 × lease. The same seq again: the same verdicts, and those of its jobs that are still under those leases,
        renewed. A lower seq: `stale`. A higher one: execute. Past `not_after`: `expired`.
        A claim with `stand` that finds nothing may stay. `enqueue` answers it once, with a job that nothing goes
        before, and sends that to its inbox. As messages may be lost, it is also the answer to that seq from then on,
        and to a later step which says that it is `unheard`: `handed`.
        """
        ...

    def renew(self, shard: int, worker: str, lease: Micros, leases: Sequence[Renewal]) -> Op[list[RenewalVerdict]]:
        """Keep leases alive for `lease` µs from now, in one call for all of a worker's. Only the owner of a lease that
        has not been reaped or finished is served; never makes one that is gone. Natural: may be sent twice.
        """
        ...

    def reap(self, shard: int, limit: int = 1000) -> Op[dict[str, int]]:
        """Jobs whose lease ran out go back to pending (attempt counted, cause recorded), or to failed when their
        attempts are used up (as with a cancellation that was wanted: cancelled); what is due becomes pending. Answers
        what became ready by type. Any number of processes may do it at once.
        """
        ...

    def undelivered(self, shard: int, limit: int = 1000) -> Op[list[Delivery]]:
        """Ends of chains that jobs of other shards wait for, and have not been told of yet."""
        ...

    def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> Op[dict[str, int]]:
        """Tell jobs of this shard. Idempotent: a blocker leaves a set. Answers what became ready by type."""
        ...

    def delivered(self, shard: int, deliveries: Sequence[Delivery]) -> Op[None]:
        """They have been told: forget these."""
        ...

    # ── by hand ──

    def cancel(self, job: str, reason: str) -> Op[State | None]:
        """Not running: cancelled at once, dependents skipped. Running: `cancel_requested` is set, its worker hears of
        it with its next renewal; answers "running". Final: left as it is. None: no such job.
        """
        ...

    def trigger(self, job: str) -> Op[State | None]:
        """Again, now: scheduled, failed, cancelled and skipped jobs become pending with all their attempts (blocked, if
        a blocker has not ended); those that were skipped because of it wait for it again. Answers the state it has now.
        A job of a run is left as it is while that is being cancelled, and where it would be skipped again at once: with
        `all_success`, a blocker of it did not succeed and has not begun anew; with `any_failure`, none of them failed.
        """
        ...

    def purge(self, state: State, *, queue: str = "", limit: int = 1000) -> Op[int]:
        """Delete final jobs of a state, oldest first; answers how many."""
        ...

    def pause(self, queue: str, *, paused: bool) -> Op[None]:
        """A paused queue hands out nothing; what runs goes on."""
        ...

    def limit_queue(self, queue: str, rate: Rate | None) -> Op[None]:
        """How many jobs of a queue may start in a time; None: any number."""
        ...

    # ── looking ──

    def get(self, job: str) -> Op[Job | None]: ...

    def watch(self, job: str, *, chain: bool = False) -> Op[Job | None]:
        """The job, or the last one of its chain, as it is now; from now on its end is announced. No end falls between
        the look and the watching.
        """
        ...

    def list_jobs(
        self,
        *,
        state: State | None = None,
        queue: str = "",
        type: str = "",  # noqa: A002 - what it is called everywhere
        run: str = "",
        before: str = "",
        limit: int = 50,
    ) -> Op[list[Job]]:
        """Newest first (by id); `before` is the last id of the page before. Bounded by `limit`, not by the backlog."""
        ...

    def results(self, run: str, *, before: str = "", limit: int = 1000) -> Op[list[JobResult]]:
        """What the jobs of a run came to so far; pages as of `list_jobs(run=…)`, each for a fraction of the price."""
        ...

    def queues(self) -> Op[list[Queue]]: ...

    def next_due(self, shard: int) -> Op[Micros | None]:
        """µs until something becomes due or a lease ends."""
        ...

    # ── what jobs leave behind ──

    def append_log(self, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> Op[bool]:
        """Chunks (time, stream, data) with sequence numbers from `first` on; numbers that are there already are left as
        they are, so sending twice is safe. False: the lease is not current, nothing was written. `fence` 0: whoever
        asks may (a server on a worker's behalf has checked).
        """
        ...

    def read_log(self, job: str, after: int = 0, limit: int = 1000) -> Op[list[LogLine]]: ...

    def put_outputs(self, job: str, fence: int, outputs: dict[str, str]) -> Op[bool]:
        """Values by key, added to what is there. False: the lease is not current."""
        ...

    def get_outputs(self, job: str) -> Op[dict[str, str]]: ...

    # ── workers, cron, tidiness ──

    def beat(self, worker: Worker) -> Op[None]:
        """Register or refresh a worker: `registered` and `beat` are the engine's."""
        ...

    def leave(self, worker: str) -> Op[None]: ...

    def workers(self) -> Op[list[Worker]]:
        """All that were heard of within a day."""
        ...

    def ticks(self, names: Sequence[str]) -> Op[dict[str, Micros]]:
        """When each cron entry last ticked; absent: never. A new entry is remembered as of now."""
        ...

    def tick(self, tick: Tick) -> Op[bool]:
        """Enqueue a cron entry's job. However many schedulers ask, one of them makes it: True."""
        ...

    def prune(self, shard: int, keep: int, limit: int = 1000) -> Op[int]:
        """Delete final jobs past their time, and the oldest completed ones above `keep`. Answers how many."""
        ...

    # ── runs ──
    # Every move of a job with a run, by whichever verb, counts in its run and appends to its events in the same step.
    # When the last of its jobs ends, so does the run: cancelled, if that was wanted; failure, if a job failed that is
    # not `soft`; else success. A job that is tried again (`trigger`) reopens it. After the commit, `<prefix>:events`
    # hears `<run>:<seq of its last event>`, once for each run that a step changed; and `<prefix>:runc` the id of each
    # run that ended in it.

    def start_run(self, run: NewRun) -> Op[Run]:
        """The run and all of its jobs, or nothing (ConfigError: a blocker that is not among them, more than
        LARGEST_RUN). By id: a run that exists is left as it is and answered, so sending twice is safe. With no jobs it
        is a success at once. Jobs are as with `enqueue`; unique keys are refused.
        """
        ...

    def get_run(self, run: str, *, doc: bool = True) -> Op[Run | None]:
        """`doc`: with its document, which may be large and never changes; else that is left empty."""
        ...

    def list_runs(
        self, *, workflow: str = "", status: RunStatus | None = None, before: str = "", limit: int = 50
    ) -> Op[list[Run]]:
        """Newest first (by id), `doc` left empty. Bounded by `limit`."""
        ...

    def cancel_run(self, run: str, reason: str) -> Op[Run | None]:
        """Whatever does not run is cancelled at once, whatever runs is told to stop, and jobs that are still added
        (`Finish.next`, `adds`) are cancelled when they are made. A finished run is left as it is.
        """
        ...

    def rerun_failed(self, run: str) -> Op[Run | None]:
        """Every job that failed or was cancelled is triggered, in one step; those that were skipped because of them
        wait again. A run that has none, or has not finished, is left as it is.
        """
        ...

    def run_events(self, run: str, after: int = 0, limit: int = 1000) -> Op[list[RunEvent]]: ...

    def events(self, shard: int, after: str = "", limit: int = 1000) -> Op[EventPage]:
        """Of all runs, behind a cursor; "": from the oldest that is kept; "$": from now on. A page that was read is
        complete: nothing appears before its cursor later on.
        """
        ...

    def check_runs(self, shard: int, limit: int = 100) -> Op[list[str]]:
        """Compare the counts of runs that have not finished with their jobs, set right what differs, and cancel runs
        past their deadline. Answers the ids of those that had to be set right: none, unless there is a bug.
        """
        ...

    # ── what runs are made from, and what a server keeps ──

    def put_definition(self, workflow: str, digest: str, doc: bytes) -> Op[Definition]:
        """The next version, unless the newest one has this digest already: then that one."""
        ...

    def get_definition(self, workflow: str, version: int = 0) -> Op[Definition | None]:
        """0: the newest."""
        ...

    def list_definitions(self, *, after: str = "", limit: int = 100) -> Op[list[Definition]]:
        """The newest version of each, by name, `doc` left empty."""
        ...

    def put_artifact(self, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> Op[bool]:
        """Parts from 0 on, in order; it is there for others with its last part, and replaces one of the same name. A
        part that is there already is left as it is. False: the lease is not current (`fence` 0: whoever asks may).
        """
        ...

    def list_artifacts(self, job: str) -> Op[list[Artifact]]: ...

    def read_artifact(self, job: str, name: str, part: int) -> Op[bytes | None]:
        """One part; None: there is none."""
        ...

    def put_token(self, token: TokenRecord) -> Op[None]: ...

    def drop_token(self, token: str) -> Op[bool]: ...

    def tokens(self) -> Op[list[TokenRecord]]:
        """All that have not expired."""
        ...
