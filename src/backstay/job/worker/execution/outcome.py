"""Turn a handler's return value or exception into the `Finish` of its attempt."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any, cast

from msgspec.structs import replace

from backstay.engine.base import Micros
from backstay.errors import BadResult, JobTimeout, PayloadTooLarge, UnknownJob
from backstay.job import metadata
from backstay.job.api.retry import Cancel, Outcome, Retry, Skip, Snooze
from backstay.job.exchange import Claimed
from backstay.job.metadata import Meta
from backstay.job.model import Failure, Finish
from backstay.job.worker.execution.attempt import Attempt
from backstay.runtime.serialization import escape_surrogates

#: Longest stored traceback, in characters; its end is kept, which shows where the error occurred.
LONGEST_TRACE = 8000
LONGEST_MESSAGE = 2000
#: For how many seconds a job of an unknown type is snoozed. UNKNOWN_FIRST: the first time; each later snooze is twice
#: as long. UNKNOWN_MOST: the longest snooze.
UNKNOWN_FIRST, UNKNOWN_MOST = 1.0, 300.0
#: Errors that another attempt would raise again, so the job fails at once.
NOT_RETRYABLE = (BadResult, PayloadTooLarge)


class HandlerAbandoned(Exception):
    """The handler did not end after it was interrupted. It may still run, but its outcome is not stored."""


class ProcessDied(Exception):
    """The child process that ran the handler exited without reporting an outcome."""


class EncodedResult:
    """A handler's result that is already encoded, so it must not be encoded again. Child processes return such results,
    and so does the internal job that collects the results of a workflow's `flow.map` in a list.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


class HandlerError(Exception):
    """Represents another exception by its class name, message and traceback text. Used for exceptions that were raised
    in a child process, and for those after which a retry would fail in the same way (`pointless`).
    """

    def __init__(self, kind: str, message: str, trace: str, *, pointless: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace
        self.pointless = pointless


def describe_failure(error: BaseException, attempt: int) -> Failure:
    """Return an exception as the `Failure` that is stored with the job."""
    if isinstance(error, HandlerError):
        return Failure(error.kind, _short(str(error)), error.trace[-LONGEST_TRACE:], attempt)
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        code = f"({error.code!r})" if isinstance(error, SystemExit) and error.code is not None else ""
        return Failure(
            type(error).__name__,
            f"the handler raised {type(error).__name__}{code}, which would exit the program; the worker keeps running",
            format_trace(error),
            attempt,
        )
    message = _message_of(error)
    if not message and isinstance(error, asyncio.CancelledError):
        message = (
            "the handler was cancelled, but not by the worker: a task that it awaited was cancelled, or the event loop"
            " was stopped"
        )
    return Failure(type(error).__name__, _short(message), format_trace(error), attempt)


def format_trace(error: BaseException) -> str:
    """Return the traceback from the handler on, without the worker's own frames."""
    try:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "/backstay/job/" not in f.filename.replace("\\", "/")] or list(frames)
        lines = traceback.format_list(own)
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        before = "".join(traceback.format_exception_only(cause)) if cause is not None else ""
        return escape_surrogates((before + "".join(lines))[-LONGEST_TRACE:])
    except Exception:  # noqa: BLE001 - an exception object may itself be broken
        return ""


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - its __str__ may raise anything
        return "(its message cannot be read)"


def _short(text: str) -> str:
    return escape_surrogates(text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…")


def check_outputs(attempt: Attempt) -> None:
    """Check the attempt's outputs. Raises BadResult, which names the output that cannot be stored."""
    for name, value in cast("dict[object, object]", attempt.outputs or {}).items():
        for text in (name, value):
            if not isinstance(text, str):
                reason = f"outputs must be strings by name, and outputs[{name!r}] is {type(value).__name__}"
                raise BadResult(type=attempt.job.type, reason=reason)
            if escape_surrogates(text) != text:
                raise BadResult(type=attempt.job.type, reason=f"outputs[{name!r}] cannot be encoded as UTF-8")


def finish_value(attempt: Attempt, value: Any) -> Finish:
    """Return the outcome of a handler that returned `value`."""
    job = attempt.job
    if isinstance(value, Outcome):
        return _finish_outcome(attempt, value)
    try:
        result = value.raw if type(value) is EncodedResult else attempt.definition.encode_result(value)
    except Exception as error:  # noqa: BLE001 - encoding a value may raise anything
        return Finish(job=job.id, fence=job.fence, kind="fail", error=describe_failure(error, job.attempt))
    if attempt.next is not None:
        return Finish(job=job.id, fence=job.fence, kind="complete", result=result, next=attempt.next, adds=attempt.adds)
    return Finish(job=job.id, fence=job.fence, kind="complete", result=result)


def finish_error(attempt: Attempt, error: BaseException) -> Finish | None:
    """Return the outcome of a handler that raised; None if the lease is lost and nothing may be reported."""
    job, why = attempt.job, attempt.why
    if isinstance(error, Outcome):
        return _finish_outcome(attempt, error)
    if why == "lost":
        return None
    if why == "stopping":
        # The handler was asked to stop, so its exception does not count: a deploy uses up no attempt.
        return Finish(job=job.id, fence=job.fence, kind="release")
    if why == "cancelled":
        return Finish(job=job.id, fence=job.fence, kind="cancel")  # the store already has the reason
    if why == "timeout":
        late = describe_failure(
            JobTimeout(job_id=job.id, type=job.type, timeout=attempt.timeout_at - attempt.started), job.attempt
        )
        if isinstance(error, HandlerAbandoned):
            late = Failure(late.kind, f"{late.message}; {error}", "", job.attempt)
        elif not isinstance(error, asyncio.CancelledError):
            late = Failure(late.kind, late.message, format_trace(error), job.attempt)
        return finish_retry(attempt, late)
    return retry_or_fail(attempt, error)


def retry_or_fail(attempt: Attempt, error: BaseException) -> Finish:
    """Return the outcome of an attempt that failed with `error`: a retry, or a failure if a retry would fail in the
    same way.
    """
    job = attempt.job
    failure = describe_failure(error, job.attempt)
    pointless = isinstance(error, NOT_RETRYABLE) or (isinstance(error, HandlerError) and error.pointless)
    return (
        Finish(job=job.id, fence=job.fence, kind="fail", error=failure) if pointless else finish_retry(attempt, failure)
    )


def finish_retry(attempt: Attempt, failure: Failure, after: float | None = None) -> Finish:
    """Return a retry after `after` seconds or, if `after` is None, after the job's backoff. If no attempts are left,
    the store makes the job fail.
    """
    job = attempt.job
    if after is None:
        try:
            after = (read_meta(job).backoff or attempt.definition.backoff).delay(job.attempt)
        except Exception as error:  # noqa: BLE001 - a backoff function is user code
            after = 1.0
            failure = Failure(
                failure.kind, f"{failure.message} (and its backoff raised {error!r})", failure.trace, failure.attempt
            )
    return Finish(job=job.id, fence=job.fence, kind="retry", delay=int(after * 1_000_000), error=failure)


def stamp_failure(finish: Finish, now: Micros) -> Finish:
    """Return the outcome of an attempt. If it contains a failure, set the failure's time to `now`."""
    if finish.error is None:
        return finish
    return replace(finish, error=replace(finish.error, at=now))


def snooze_unknown(job: Claimed, known: tuple[str, ...]) -> Finish:
    """Return a snooze for a job whose type this worker does not know: another worker may know it, or this one after its
    next deploy.
    """
    delay = min(UNKNOWN_FIRST * 2 ** min(job.snoozes, 20), UNKNOWN_MOST)
    failure = Failure("UnknownJob", str(UnknownJob(type=job.type, known=known, job_id=job.id)), "", job.attempt)
    return Finish(job=job.id, fence=job.fence, kind="snooze", delay=int(delay * 1_000_000), error=failure)


def _finish_outcome(attempt: Attempt, outcome: Outcome) -> Finish:
    job = attempt.job
    match outcome:
        case Snooze():
            failure = Failure("Snooze", _short(outcome.reason), "", job.attempt) if outcome.reason else None
            delay = int(outcome.seconds * 1_000_000)
            return Finish(job=job.id, fence=job.fence, kind="snooze", delay=delay, error=failure)
        case Cancel():
            failure = Failure("Cancel", _short(str(outcome)), "", job.attempt)
            return Finish(job=job.id, fence=job.fence, kind="cancel", error=failure)
        case Skip():
            failure = Failure("Skipped", str(outcome), "", job.attempt)
            return Finish(job=job.id, fence=job.fence, kind="skip", error=failure)
        case Retry():
            return finish_retry(attempt, Failure("Retry", _short(str(outcome)), "", job.attempt), outcome.after)
        case _:
            return finish_retry(attempt, describe_failure(outcome, job.attempt))


_METAS: dict[bytes, Meta] = {}
_MOST_METAS = 1000


def read_meta(job: Claimed) -> Meta:
    """Return a job's decoded metadata (job/metadata.py). It is cached by its encoded form, which is the same for most
    jobs of a type.
    """
    raw = job.meta
    if not raw:
        return metadata.PLAIN
    found = _METAS.get(raw)
    if found is None:
        if len(_METAS) >= _MOST_METAS:
            _METAS.clear()
        found = _METAS[raw] = metadata.unpack(raw)
    return found
