"""A program's function, run by a worker that speaks HTTP: it knows its job, its words are sent, it ends when it is told
to, and says how its job is to go on, as it would with a worker that speaks to the engine.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from backstay.engine.base import steady
from backstay.errors import BackstayError, ConfigError
from backstay.job.api.context import enter
from backstay.job.api.retry import Cancel, Outcome, Retry, Snooze
from backstay.job.model import Claimed
from backstay.job.worker.execution import outcome
from backstay.job.worker.execution.attempt import Attempt, Why
from backstay.runtime.serialization import ANYTHING, storable
from backstay.server.remote_worker.client import Answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backstay.engine.base import Micros
    from backstay.job.api.definition import BaseJobType
    from backstay.job.worker.execution.threads import Threads

#: Lines wait this long for company; one that is longer is cut; so many may wait for a server that is away.
PATIENCE, LONGEST_LINE, MOST_WAITING = 0.1, 16_000, 10_000
#: What a server takes; lines of other streams are of the last one.
STREAMS = ("stdout", "stderr", "log")
LONGEST_ERROR = 10_000


class Lost(Exception):
    """The lease is somebody else's by now: whatever is still done counts no more."""


class Hand(Protocol):
    """A job in a worker's hands."""

    job: dict[str, Any]
    lease: str
    ttl: float
    cancelled: bool
    progress: float | None

    async def say(self, lines: Sequence[tuple[Micros, str, str]]) -> None: ...

    async def beat(self) -> None: ...


class Words:
    """What a function says. May be called from any thread."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self._loop = asyncio.get_running_loop()
        self._lines: list[tuple[Micros, str, str]] = []
        self._sending = asyncio.Lock()
        self._stir = asyncio.Event()

    def log(self, hands: Attempt, data: str, stream: str) -> None:
        if hands.is_over or len(self._lines) >= MOST_WAITING:
            return
        now, data, kind = time.time_ns() // 1000, storable(data), stream if stream in STREAMS else STREAMS[-1]
        for start in range(0, max(1, len(data)), LONGEST_LINE):
            self._lines.append((now, kind, data[start : start + LONGEST_LINE]))
        self._wake()

    def progressed(self, hands: Attempt) -> None:
        self._hand.progress = hands.progress
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody sends it
            self._loop.call_soon_threadsafe(self._stir.set)

    async def carry(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._stir.wait()
            await asyncio.sleep(PATIENCE)
            self._stir.clear()
            with suppress(BackstayError, Answered, Lost):  # the next time, or with its end
                await self.flush()
                if self._hand.progress is not None:
                    await self._hand.beat()

    async def flush(self) -> None:
        async with self._sending:
            while lines := self._lines[:]:
                await self._hand.say(lines)
                del self._lines[: len(lines)]  # threads only append


class FunctionRun:
    """One attempt. It runs once; `stop` and `kill` may be called at any time, on its loop."""

    def __init__(self, hand: Hand, known: BaseJobType[..., Any], threads: Threads, grace: float) -> None:
        self._hand = hand
        self._threads = threads
        self._grace = grace
        self._words = Words(hand)
        self._told = asyncio.Event()
        self.attempt = Attempt(_claimed(hand), known, 0, hand.ttl, steady())

    def stop(self) -> None:
        """It is to end: somebody cancelled it, or its worker stops."""
        self._interrupt("cancelled" if self._hand.cancelled else "stopping", "")

    def kill(self) -> None:
        """Its lease is lost."""
        self._interrupt("lost", "the server says that it is not current")

    def renewed(self, sent: float) -> None:
        self.attempt.extend(sent, time.time_ns() // 1000 + int(self._hand.ttl * 1_000_000))

    def _interrupt(self, why: Why, reason: str) -> None:
        self.attempt.interrupt(why, reason, self._grace)

    async def run(self) -> tuple[str, dict[str, Any]] | None:
        """What to tell the server, as verb and body; None: nothing, the lease is lost."""
        attempt, seconds = self.attempt, self._hand.job["timeout_secs"]
        limit = None
        if seconds:
            attempt.soft = attempt.started + seconds
            limit = asyncio.get_running_loop().call_later(seconds, self._interrupt, "timeout", "its time is over")
        carrying = asyncio.create_task(self._words.carry())
        try:
            value, error = await self._end()
            with suppress(BackstayError, Answered, Lost):
                await self._words.flush()
            return None if attempt.why == "lost" else self._report(value, error)
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)
            if limit is not None:
                limit.cancel()

    async def _end(self) -> tuple[Any, BaseException | None]:
        """What it returned, or raised. One that does not end although it was told to is left behind."""
        attempt = self.attempt
        handler = asyncio.create_task(self._call())
        told = asyncio.create_task(self._told.wait())
        is_async = attempt.definition.is_async

        def interrupted() -> None:
            self._told.set()
            if is_async:  # a thread cannot be stopped: it reads `ctx.cancelled`
                handler.cancel()

        attempt.interrupted = interrupted
        if attempt.why:  # before it began
            interrupted()
        try:
            await asyncio.wait({handler, told}, return_when=asyncio.FIRST_COMPLETED)
            if not handler.done():
                await asyncio.wait({handler}, timeout=max(0.0, attempt.hard - steady()))
        finally:
            told.cancel()
        if not handler.done():
            attempt.abandoned = True
            handler.cancel()
            return None, outcome.Abandoned(f"it did not end within {self._grace:g} s of being told to")
        if handler.cancelled():
            return None, asyncio.CancelledError()
        return handler.result()

    async def _call(self) -> tuple[Any, BaseException | None]:
        attempt, definition = self.attempt, self.attempt.definition
        enter((attempt, self._words))
        try:
            args, kwargs = definition.decode_args(attempt.job.args)
            attempt.begin()
            if definition.is_async:
                return await definition.function(*args, **kwargs), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a function raises is its failure
            return None, error
        done: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()

        def answer(value: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_result((value, error))

        handler = partial(attempt.begun, partial(definition.function, *args, **kwargs))
        self._threads.call(copy_context(), handler, answer)
        return await done

    # ── how it ended ──

    def _report(self, value: Any, error: BaseException | None) -> tuple[str, dict[str, Any]]:
        match value if isinstance(value, Outcome) else error:
            case None:
                return self._complete(value)
            case Snooze() as snooze:
                return "release", {"delay_secs": snooze.seconds}
            case Cancel() as cancel:
                return "fail", {"error": _short(str(cancel)), "cancelled": True}
            case Retry() as retry:
                return "fail", {"error": _short(f"Retry: {retry}"), "delay_secs": retry.after}
            case other:
                return self._failed(other)

    def _complete(self, value: Any) -> tuple[str, dict[str, Any]]:
        attempt = self.attempt
        try:
            if attempt.next is not None:
                raise ConfigError("continue_with() needs a worker that speaks to the engine, not to a server")
            outcome.check_outputs(attempt)
            result = ANYTHING.decode(attempt.definition.encode_result(value))
        except Exception as error:  # noqa: BLE001 - a value may raise whatever it likes while it is encoded
            said = outcome.failure(error, attempt.job.attempt)
            return "fail", {"error": _short(f"{said.kind}: {said.message}"), "retryable": False}
        return "complete", {"result": result, "outputs": attempt.outputs or {}}

    def _failed(self, error: BaseException) -> tuple[str, dict[str, Any]]:
        attempt = self.attempt
        if attempt.why == "stopping":
            return "release", {}
        if attempt.why == "cancelled":
            return "fail", {"error": "it was cancelled", "cancelled": True}
        if attempt.why == "timeout":
            return "fail", {"error": f"it ran longer than {attempt.soft - attempt.started:g} s"}
        said = outcome.failure(error, attempt.job.attempt)
        pointless = isinstance(error, outcome.POINTLESS)
        return "fail", {"error": _short(f"{said.kind}: {said.message}"), "retryable": not pointless}


def _short(text: str) -> str:
    return text[:LONGEST_ERROR]


def _claimed(hand: Hand) -> Claimed:
    """The job as its handler sees it. What came before it are arguments, or nothing: results travel as text here."""
    job = hand.job
    return Claimed(
        id=job["uid"],
        fence=int(hand.lease.rpartition(".")[2]),
        type=job["type"],
        queue=job["queue"],
        args=ANYTHING.encode(job["args"] or {}),
        meta=b"",
        attempt=job["attempt"],
        retries=job["retry_policy"]["max_retries"],
        snoozes=job["snoozes"],
        priority=job["priority"],
        chain=job["chain"],
        run=job["run_id"],
        labels=tuple(job["required_labels"]),
        enqueued=job["enqueued_at_ms"] * 1000,
        due=job["delayed_until_ms"] * 1000,
        until=time.time_ns() // 1000 + int(hand.ttl * 1_000_000),
    )
