"""`current_job()`: a handler's access to the job that it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, Protocol, cast

from msgspec.structs import replace

from backstay.errors import ConfigError
from backstay.job.exchange import Claimed
from backstay.job.ids import lease_id
from backstay.job.metadata import pack, unpack
from backstay.job.model import NewJob
from backstay.runtime.lease import BaseLease
from backstay.runtime.serialization import PLAIN_CODEC


class AttemptHandle(Protocol):
    """The running attempt of a job: an `Attempt` in the worker's process, or a `ChildAttempt` if the handler runs in a
    child process.
    """

    job: Claimed
    context: JobContext | None
    lease: BaseLease | None
    deadline: float
    ttl: float
    started: float
    why: Any
    progress: float
    next: NewJob | None
    outputs: dict[str, str] | None

    def check(self) -> None: ...


class AttemptSink(Protocol):
    """Receives the log lines and the progress that a handler reports."""

    def log(self, attempt: Any, data: str, stream: str) -> None: ...

    def report_progress(self, attempt: Any) -> None: ...


_CURRENT: ContextVar[tuple[Any, AttemptSink] | None] = ContextVar("backstay_job", default=None)

#: Sets `_CURRENT` in the context (`contextvars`) in which a handler runs. The value is a pair: the running attempt, and
#: the object that receives its log lines and progress.
enter: Callable[[tuple[Any, AttemptSink] | None], Token[tuple[Any, AttemptSink] | None]] = _CURRENT.set
leave: Callable[[Token[tuple[Any, AttemptSink] | None]], None] = _CURRENT.reset


class JobContext:
    """The current job, as its handler sees it. Reading a property sends no request to the engine. Call `check()` before
    side effects that must not happen twice.
    """

    __slots__ = ("_attempt", "_sink")

    def __init__(self, attempt: AttemptHandle, sink: AttemptSink) -> None:
        self._attempt = attempt
        self._sink = sink

    @property
    def id(self) -> str:
        return self._attempt.job.id

    @property
    def type(self) -> str:
        return self._attempt.job.type

    @property
    def queue(self) -> str:
        return self._attempt.job.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1."""
        return self._attempt.job.attempt

    @property
    def is_last_attempt(self) -> bool:
        return self._attempt.job.attempt > self._attempt.job.retries

    @property
    def snoozes(self) -> int:
        return self._attempt.job.snoozes

    @property
    def priority(self) -> int:
        return self._attempt.job.priority

    @property
    def labels(self) -> tuple[str, ...]:
        return self._attempt.job.labels

    @property
    def chain(self) -> str:
        """The id of the job's chain, which is the id of the chain's first job."""
        return self._attempt.job.chain or self._attempt.job.id

    @property
    def run(self) -> str:
        return self._attempt.job.run

    @property
    def fence(self) -> int:
        """The fencing token. It grows with every claim: a resource that stores the largest token it has seen can reject
        the writes of an earlier attempt that has lost its lease.
        """
        return self._attempt.job.fence

    @property
    def lease(self) -> BaseLease:
        """The lease under which this attempt runs, with `id`, `fence`, `remaining()`, `is_lost` and `check()`."""
        attempt = self._attempt
        if attempt.lease is None:
            job = attempt.job
            left = attempt.deadline
            attempt.lease = BaseLease(
                job.id,
                lease_id(job.id, job.fence),
                job.fence,
                attempt.ttl,
                max(0, job.until - int(attempt.ttl * 1_000_000)),
                job.until,
                attempt.started,
                renews=True,
                max_hold=float("inf"),
            )
            attempt.lease.deadline = left
            if attempt.why == "lost":
                attempt.lease.lose("another worker may run this job by now")
        return attempt.lease

    @property
    def trace(self) -> dict[str, str]:
        """The trace context of the code that enqueued the job, and the entries that middleware added when the job was
        enqueued.
        """
        return unpack(self._attempt.job.meta).trace

    @property
    def upstream(self) -> dict[str, bytes | None]:
        """The encoded results of the chains that the job waited for, by chain id. The value is None for a chain that
        did not complete.
        """
        return self._attempt.job.upstream

    @property
    def results(self) -> dict[str, Any]:
        """The decoded results of the chains that the job waited for, by chain id. The result of a chain is what its
        last job returned. The value is None for a chain that did not complete.
        """
        return {chain: PLAIN_CODEC.decode(raw) if raw else None for chain, raw in self.upstream.items()}

    @property
    def cancelled(self) -> bool:
        """Whether this attempt must end: it is cancelled, its time limit is exceeded, its worker is stopping, or its
        lease is lost.
        """
        return bool(self._attempt.why)

    def check(self) -> None:
        """Raise JobCancelled, JobTimeout or LeaseLost if this attempt must end. Call it in loops that never await."""
        self._attempt.check()

    def log(self, data: object, *, stream: str = "log") -> None:
        """Store a log line with the job; read it with `await handle.logs()`. Lines are stored in batches, and all of
        them before the attempt ends.
        """
        self._sink.log(self._attempt, str(data), stream)

    def progress(self, fraction: float) -> None:
        """Report progress, from 0 to 1. It is stored within about a second."""
        given = cast("object", fraction)
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1:
            raise ConfigError(f"progress must be a number from 0 to 1; got {fraction!r}")
        self._attempt.progress = float(fraction)
        self._sink.report_progress(self._attempt)

    @property
    def outputs(self) -> dict[str, str]:
        """Strings by name, stored with the job when this attempt completes: `ctx.outputs["path"] = "a.png"`."""
        if self._attempt.outputs is None:
            self._attempt.outputs = {}
        return self._attempt.outputs

    def continue_with(self, job: Any, *args: Any, **kwargs: Any) -> None:
        """Continue the chain with `job` (a job type, or its `.options(…)`) when this attempt completes, in the same
        transaction. The last call wins.
        """
        make = getattr(job, "new_job", None)
        if make is None:
            raise ConfigError(
                f"continue_with takes a job, as in ctx.continue_with(resize, path); got {type(job).__name__}"
            )
        following: NewJob = make(args, kwargs, chain=self.chain)
        if self.chain in following.after or self.id in following.after:
            raise ConfigError("a chain cannot continue with a job that waits for this same chain: it would deadlock")
        if self.run:  # the next job belongs to the same run and has the same key
            key = unpack(self._attempt.job.meta).key
            carried = replace(unpack(following.meta), key=key)
            following = replace(following, run=self.run, meta=pack(carried))
        self._attempt.next = following

    def __repr__(self) -> str:
        return f"<JobContext {self.type} {self.id} attempt={self.attempt}>"


def continue_chain(following: NewJob, adds: tuple[NewJob, ...] = ()) -> None:
    """Continue the chain of the current job with the job `following`, which is stored when the current attempt
    completes. The jobs in `adds` are stored in the same transaction, before `following`. Outside a handler, this
    function does nothing.
    """
    found = _CURRENT.get()
    if found is not None:
        found[0].next, found[0].adds = following, adds


def is_in_handler() -> bool:
    """Whether the caller runs inside a handler."""
    return _CURRENT.get() is not None


def current_attempt() -> Any:
    """Return the current attempt. Raises ConfigError outside a handler."""
    found = _CURRENT.get()
    if found is None:
        raise ConfigError("no job runs here: call this inside a handler")
    return found[0]


def current_job() -> JobContext:
    """Return the current job. Raises ConfigError outside a handler."""
    found = _CURRENT.get()
    if found is None:
        raise ConfigError("no job runs here: call current_job() inside a handler")
    attempt, sink = found
    context: JobContext | None = attempt.context
    if context is None:
        context = attempt.context = JobContext(attempt, sink)
    return context
