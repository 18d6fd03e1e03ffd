"""Runs a function job on a remote worker, with the same context, logs, interruption and outcomes as on a worker that
connects to the engine.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from backstay.engine.base import steady
from backstay.errors import BackstayError, ConfigError
from backstay.job.api.context import enter
from backstay.job.api.retry import Cancel, Outcome, Retry, Snooze
from backstay.job.exchange import Claimed
from backstay.job.worker.execution import outcome
from backstay.job.worker.execution.attempt import Attempt, Why
from backstay.runtime.serialization import PLAIN_CODEC, escape_surrogates
from backstay.server.remote_worker.client import RequestRefused
from backstay.server.remote_worker.leased_job import LeasedJob, LeaseRevoked

if TYPE_CHECKING:
    from backstay.engine.base import Micros
    from backstay.job.api.definition import BaseJobType
    from backstay.job.worker.execution.threads import Threads

#: Seconds for which log lines are collected before they are sent in one request.
FLUSH_DELAY = 0.1
#: Characters of one log line; longer lines are split.
LONGEST_LINE = 16_000
#: Log lines that are buffered while the server is unavailable; further lines are dropped.
MAX_BUFFERED = 10_000
#: The log streams that the server accepts. Lines of any other stream are sent as `log`.
STREAMS = ("stdout", "stderr", "log")
LONGEST_ERROR = 10_000


class LogSender:
    """Buffers the log lines and progress of a function, and sends them to the server. `log` and `report_progress` may
    be called from any thread; other methods run on the event loop.
    """

    def __init__(self, leased: LeasedJob) -> None:
        self._leased = leased
        self._loop = asyncio.get_running_loop()
        self._lines: list[tuple[Micros, str, str]] = []
        self._sending = asyncio.Lock()
        self._wakeup = asyncio.Event()

    def log(self, attempt: Attempt, data: str, stream: str) -> None:
        if attempt.is_over or len(self._lines) >= MAX_BUFFERED:
            return
        now, data, kind = time.time_ns() // 1000, escape_surrogates(data), stream if stream in STREAMS else STREAMS[-1]
        for start in range(0, max(1, len(data)), LONGEST_LINE):
            self._lines.append((now, kind, data[start : start + LONGEST_LINE]))
        self._wake()

    def report_progress(self, attempt: Attempt) -> None:
        self._leased.progress = attempt.progress
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: the lines are dropped
            self._loop.call_soon_threadsafe(self._wakeup.set)

    async def run(self) -> None:
        """Send new lines and progress until cancelled."""
        while True:
            await self._wakeup.wait()
            await asyncio.sleep(FLUSH_DELAY)
            self._wakeup.clear()
            with suppress(BackstayError, RequestRefused, LeaseRevoked):  # unsent lines stay buffered for the next flush
                await self.flush()
                if self._leased.progress is not None:
                    await self._leased.heartbeat()

    async def flush(self) -> None:
        async with self._sending:
            while lines := self._lines[:]:
                await self._leased.send_log(lines)
                del self._lines[: len(lines)]  # safe: other threads only append to the list


class FunctionRun:
    """One attempt of a function job. `run` is called once; `stop` and `kill` at any time, on the event loop."""

    def __init__(self, leased: LeasedJob, known: BaseJobType[..., Any], threads: Threads, grace: float) -> None:
        self._leased = leased
        self._threads = threads
        self._grace = grace
        self._log_sender = LogSender(leased)
        self._interrupted = asyncio.Event()
        self.attempt = Attempt(_build_claimed(leased), known, 0, leased.ttl, steady())

    def stop(self) -> None:
        """Interrupt the function: the job was cancelled, or the worker stops."""
        self._interrupt("cancelled" if self._leased.cancelled else "stopping", "")

    def kill(self) -> None:
        """Interrupt the function because its lease is lost; the outcome is not reported."""
        self._interrupt("lost", "the server reports that the lease is not current")

    def extend_lease(self, sent: float) -> None:
        """Record that the lease was renewed by a heartbeat, which was sent at `sent` (steady clock). The TTL counts
        from then.
        """
        self.attempt.extend(sent, time.time_ns() // 1000 + int(self._leased.ttl * 1_000_000))

    def _interrupt(self, why: Why, reason: str) -> None:
        self.attempt.interrupt(why, reason, self._grace)

    async def run(self) -> tuple[str, dict[str, Any]] | None:
        """Run the function. Returns how to report the outcome to the server: the verb of the request (`complete`,
        `fail` or `release`) and its body. None when the lease is lost: then nothing is reported.
        """
        attempt, seconds = self.attempt, self._leased.timeout
        limit = None
        if seconds:
            attempt.timeout_at = attempt.started + seconds
            limit = asyncio.get_running_loop().call_later(seconds, self._interrupt, "timeout", "its timeout passed")
        sending = asyncio.create_task(self._log_sender.run())
        try:
            value, error = await self._await_end()
            with suppress(BackstayError, RequestRefused, LeaseRevoked):
                await self._log_sender.flush()
            return None if attempt.why == "lost" else self._report(value, error)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            if limit is not None:
                limit.cancel()

    async def _await_end(self) -> tuple[Any, BaseException | None]:
        """Return what the function returned, and what it raised. A function that ignores an interruption is abandoned
        after the grace period.
        """
        attempt = self.attempt
        handler = asyncio.create_task(self._call())
        interruption = asyncio.create_task(self._interrupted.wait())
        is_async = attempt.definition.is_async

        def on_interrupt() -> None:
            self._interrupted.set()
            if is_async:  # a thread cannot be cancelled: its function checks `ctx.cancelled`
                handler.cancel()

        attempt.on_interrupt = on_interrupt
        if attempt.why:  # the attempt was interrupted before its function started
            on_interrupt()
        try:
            await asyncio.wait({handler, interruption}, return_when=asyncio.FIRST_COMPLETED)
            if not handler.done():
                await asyncio.wait({handler}, timeout=max(0.0, attempt.abandon_at - steady()))
        finally:
            interruption.cancel()
        if not handler.done():
            attempt.abandoned = True
            handler.cancel()
            return None, outcome.HandlerAbandoned(
                f"the handler did not end within {self._grace:g} s of its interruption"
            )
        if handler.cancelled():
            return None, asyncio.CancelledError()
        return handler.result()

    async def _call(self) -> tuple[Any, BaseException | None]:
        attempt, definition = self.attempt, self.attempt.definition
        enter((attempt, self._log_sender))
        try:
            args, kwargs = definition.decode_args(attempt.job.args)
            attempt.require_lease()
            if definition.is_async:
                return await definition.function(*args, **kwargs), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - any exception of the function is the job's failure
            return None, error
        done: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()

        def set_outcome(value: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_result((value, error))

        handler = partial(attempt.call_leased, partial(definition.function, *args, **kwargs))
        self._threads.call(copy_context(), handler, set_outcome)
        return await done

    # ── reports ──

    def _report(self, value: Any, error: BaseException | None) -> tuple[str, dict[str, Any]]:
        match value if isinstance(value, Outcome) else error:
            case None:
                return self._report_success(value)
            case Snooze() as snooze:
                return "release", {"delay_secs": snooze.seconds}
            case Cancel() as cancel:
                return "fail", {"error": _shorten(str(cancel)), "cancelled": True}
            case Retry() as retry:
                return "fail", {"error": _shorten(f"Retry: {retry}"), "delay_secs": retry.after}
            case other:
                return self._report_failure(other)

    def _report_success(self, value: Any) -> tuple[str, dict[str, Any]]:
        attempt = self.attempt
        try:
            if attempt.next is not None:
                raise ConfigError("continue_with() needs a worker that connects to the engine, not to a server")
            outcome.check_outputs(attempt)
            result = PLAIN_CODEC.decode(attempt.definition.encode_result(value))
        except Exception as error:  # noqa: BLE001 - encoding runs the value's own code
            failure = outcome.describe_failure(error, attempt.job.attempt)
            return "fail", {"error": _shorten(f"{failure.kind}: {failure.message}"), "retryable": False}
        return "complete", {"result": result, "outputs": attempt.outputs or {}}

    def _report_failure(self, error: BaseException) -> tuple[str, dict[str, Any]]:
        attempt = self.attempt
        if attempt.why == "stopping":
            return "release", {}
        if attempt.why == "cancelled":
            return "fail", {"error": "the job was cancelled", "cancelled": True}
        if attempt.why == "timeout":
            return "fail", {"error": f"the attempt ran longer than {attempt.timeout_at - attempt.started:g} s"}
        failure = outcome.describe_failure(error, attempt.job.attempt)
        pointless = isinstance(error, outcome.NOT_RETRYABLE)
        return "fail", {"error": _shorten(f"{failure.kind}: {failure.message}"), "retryable": not pointless}


def _shorten(text: str) -> str:
    return text[:LONGEST_ERROR]


def _build_claimed(leased: LeasedJob) -> Claimed:
    """Build the claimed job that the function sees through its context, from the server's JSON. It has no results of
    the jobs that it depends on: the server has already inserted them into the arguments.
    """
    job = leased.job
    return Claimed(
        id=job["uid"],
        fence=int(leased.lease.rpartition(".")[2]),
        type=job["type"],
        queue=job["queue"],
        args=PLAIN_CODEC.encode(job["args"] or {}),
        meta=b"",
        attempt=leased.attempt,
        retries=job["retry_policy"]["max_retries"],
        snoozes=job["snoozes"],
        priority=job["priority"],
        chain=job["chain"],
        run=job["run_id"],
        labels=tuple(job["required_labels"]),
        enqueued=job["enqueued_at_ms"] * 1000,
        due=job["delayed_until_ms"] * 1000,
        until=time.time_ns() // 1000 + int(leased.ttl * 1_000_000),
    )
