"""`current_job()`: what a handler may know and do about the job it works on."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, Protocol, cast

from msgspec.structs import replace

from backstay.errors import ConfigError
from backstay.job.ids import lease_id
from backstay.job.metadata import pack, unpack
from backstay.job.model import Claimed, NewJob
from backstay.runtime.lease import BaseLease
from backstay.runtime.serialization import ANYTHING


class Hands(Protocol):
    """Who works on the job: an attempt in the worker's process, or its other end in a child process."""

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


class Desk(Protocol):
    """Where a handler's words go."""

    def log(self, hands: Any, data: str, stream: str) -> None: ...

    def progressed(self, hands: Any) -> None: ...


_HANDS: ContextVar[tuple[Any, Desk] | None] = ContextVar("backstay_job", default=None)

#: Sets who works on a job, in the context of whatever runs its handler.
enter: Callable[[tuple[Any, Desk] | None], Token[tuple[Any, Desk] | None]] = _HANDS.set
leave: Callable[[Token[tuple[Any, Desk] | None]], None] = _HANDS.reset


class JobContext:
    """The job that runs here. Reading it costs nothing; `check()` before what must not happen twice."""

    __slots__ = ("_desk", "_hands")

    def __init__(self, hands: Hands, desk: Desk) -> None:
        self._hands = hands
        self._desk = desk

    @property
    def id(self) -> str:
        return self._hands.job.id

    @property
    def type(self) -> str:
        return self._hands.job.type

    @property
    def queue(self) -> str:
        return self._hands.job.queue

    @property
    def attempt(self) -> int:
        """Counted from 1."""
        return self._hands.job.attempt

    @property
    def is_last_attempt(self) -> bool:
        return self._hands.job.attempt > self._hands.job.retries

    @property
    def snoozes(self) -> int:
        return self._hands.job.snoozes

    @property
    def priority(self) -> int:
        return self._hands.job.priority

    @property
    def labels(self) -> tuple[str, ...]:
        return self._hands.job.labels

    @property
    def chain(self) -> str:
        """The id of the chain it belongs to: that of the chain's first job."""
        return self._hands.job.chain or self._hands.job.id

    @property
    def run(self) -> str:
        return self._hands.job.run

    @property
    def fence(self) -> int:
        """Grows with every claim: a store that remembers the largest one can refuse whoever comes too late."""
        return self._hands.job.fence

    @property
    def lease(self) -> BaseLease:
        """The lease under which this attempt runs: `.id .fence .remaining() .is_lost .check()`."""
        hands = self._hands
        if hands.lease is None:
            job = hands.job
            left = hands.deadline
            hands.lease = BaseLease(
                job.id,
                lease_id(job.id, job.fence),
                job.fence,
                hands.ttl,
                max(0, job.until - int(hands.ttl * 1_000_000)),
                job.until,
                hands.started,
                renews=True,
                max_hold=float("inf"),
            )
            hands.lease.deadline = left
            if hands.why == "lost":
                hands.lease.lose("somebody else may have it by now")
        return hands.lease

    @property
    def trace(self) -> dict[str, str]:
        """What travelled with it: the caller's trace context, and what middleware put in."""
        return unpack(self._hands.job.meta).trace

    @property
    def upstream(self) -> dict[str, bytes | None]:
        """What the chains it waited for came to, by chain id, as stored; None for one that did not complete."""
        return self._hands.job.upstream

    @property
    def results(self) -> dict[str, Any]:
        """The same as plain data: what each chain's last job returned, by chain id."""
        return {chain: ANYTHING.decode(raw) if raw else None for chain, raw in self.upstream.items()}

    @property
    def cancelled(self) -> bool:
        """Whether this attempt is to end: somebody cancelled it, its time is over, or its lease is lost."""
        return bool(self._hands.why)

    def check(self) -> None:
        """Raise JobCancelled, JobTimeout or LeaseLost when this attempt is to end. For loops that never await."""
        self._hands.check()

    def log(self, data: object, *, stream: str = "log") -> None:
        """Keep a line with the job: `await handle.logs()`. Sent in batches, at the latest before the job ends."""
        self._desk.log(self._hands, str(data), stream)

    def progress(self, fraction: float) -> None:
        """How far it has come, from 0 to 1. Seen by others within about a second."""
        given = cast("object", fraction)
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1:
            raise ConfigError(f"progress is a number from 0 to 1; got {fraction!r}")
        self._hands.progress = float(fraction)
        self._desk.progressed(self._hands)

    @property
    def outputs(self) -> dict[str, str]:
        """Text by name, to be kept with the job when this attempt completes: `ctx.outputs["path"] = "a.png"`."""
        if self._hands.outputs is None:
            self._hands.outputs = {}
        return self._hands.outputs

    def continue_with(self, job: Any, *args: Any, **kwargs: Any) -> None:
        """When this attempt completes, the chain goes on with `job` (a job type, or its `.options(…)`) in the same
        step. The last call counts.
        """
        make = getattr(job, "new_job", None)
        if make is None:
            raise ConfigError(
                f"continue_with takes a job, as in ctx.continue_with(resize, path); got {type(job).__name__}"
            )
        following: NewJob = make(args, kwargs, chain=self.chain)
        if self.chain in following.after or self.id in following.after:
            raise ConfigError("a chain that goes on with a job that waits for this very chain would wait for ever")
        if self.run:  # the run's own, under the same name
            key = unpack(self._hands.job.meta).key
            carried = replace(unpack(following.meta), key=key)
            following = replace(following, run=self.run, meta=pack(carried))
        self._hands.next = following

    def __repr__(self) -> str:
        return f"<JobContext {self.type} {self.id} attempt={self.attempt}>"


def go_on(following: NewJob, adds: tuple[NewJob, ...] = ()) -> None:
    """When this attempt completes, its chain goes on with a job that is made already, and `adds` are made before."""
    found = _HANDS.get()
    if found is not None:
        found[0].next, found[0].adds = following, adds


def is_inside() -> bool:
    """Whether a handler, or what it called, asks."""
    return _HANDS.get() is not None


def current_hands() -> Any:
    """Who works on the job that runs here. Raises ConfigError outside of a handler."""
    found = _HANDS.get()
    if found is None:
        raise ConfigError("no job runs here: this is for handlers, and for what they call")
    return found[0]


def current_job() -> JobContext:
    """The job that runs here. Raises ConfigError outside of a handler."""
    found = _HANDS.get()
    if found is None:
        raise ConfigError("no job runs here: current_job() is for handlers, and for what they call")
    hands, desk = found
    context: JobContext | None = hands.context
    if context is None:
        context = hands.context = JobContext(hands, desk)
    return context
