"""What a handler returned or raised, as the end of an attempt."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any, cast

from msgspec.structs import replace

from backstay.engine.base import Micros
from backstay.errors import BadResult, JobTimeout, PayloadTooLarge, UnknownJob
from backstay.job import metadata
from backstay.job.api.retry import Cancel, Outcome, Retry, Skip, Snooze
from backstay.job.metadata import Meta
from backstay.job.model import Claimed, Failure, Finish
from backstay.job.worker.execution.attempt import Attempt
from backstay.runtime.serialization import storable

#: A traceback keeps its end: where it happened.
LONGEST_TRACE = 8000
LONGEST_MESSAGE = 2000
#: A job whose type nobody here knows comes back after this, doubled each time up to the second.
UNKNOWN_FIRST, UNKNOWN_MOST = 1.0, 300.0
#: What is worth another attempt of its own accord; what these raise would be raised again.
POINTLESS = (BadResult, PayloadTooLarge)


class Abandoned(Exception):
    """The handler did not end although it was told to. It may still run; what it does counts no more."""


class HandlerExited(Exception):
    """The handler tried to end the process."""


class ProcessDied(Exception):
    """The process that ran the handler ended without an answer."""


class Encoded:
    """A result that is bytes already."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


class Raised(Exception):
    """What a handler raised in another process, in its own words."""

    def __init__(self, kind: str, message: str, trace: str, *, pointless: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace
        self.pointless = pointless


def failure(error: BaseException, attempt: int) -> Failure:
    """An exception as it is stored."""
    if isinstance(error, Raised):
        return Failure(error.kind, _short(str(error)), error.trace[-LONGEST_TRACE:], attempt)
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        code = f"({error.code!r})" if isinstance(error, SystemExit) and error.code is not None else ""
        return Failure(
            type(error).__name__,
            f"the handler raised {type(error).__name__}{code}, which ends a program; the worker went on",
            trace_of(error),
            attempt,
        )
    words = _words(error)
    if not words and isinstance(error, asyncio.CancelledError):
        words = "something that it waited for was cancelled, or the worker's event loop was stopped; not by the worker"
    return Failure(type(error).__name__, _short(words), trace_of(error), attempt)


def trace_of(error: BaseException) -> str:
    """The traceback from the handler on, without the worker's own frames."""
    try:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "/backstay/job/" not in f.filename.replace("\\", "/")] or list(frames)
        lines = traceback.format_list(own)
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        before = "".join(traceback.format_exception_only(cause)) if cause is not None else ""
        return storable((before + "".join(lines))[-LONGEST_TRACE:])
    except Exception:  # noqa: BLE001 - an exception that cannot even be looked at
        return ""


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - its __str__ is as broken as the rest
        return "(its message cannot be read)"


def _short(text: str) -> str:
    return storable(text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…")


def check_outputs(attempt: Attempt) -> None:
    """Raises BadResult, which names the output that cannot be kept."""
    for name, value in cast("dict[object, object]", attempt.outputs or {}).items():
        for text in (name, value):
            if not isinstance(text, str):
                reason = f"outputs are text by name, and outputs[{name!r}] is {type(value).__name__}"
                raise BadResult(type=attempt.job.type, reason=reason)
            if storable(text) != text:
                raise BadResult(type=attempt.job.type, reason=f"outputs[{name!r}] is no text that UTF-8 could carry")


def complete(attempt: Attempt, value: Any) -> Finish:
    """It returned."""
    job = attempt.job
    if isinstance(value, Outcome):
        return _asked(attempt, value)
    try:
        result = value.raw if type(value) is Encoded else attempt.definition.encode_result(value)
    except Exception as error:  # noqa: BLE001 - a value may raise whatever it likes while it is encoded
        return Finish(job=job.id, fence=job.fence, kind="fail", error=failure(error, job.attempt))
    if attempt.next is not None:
        return Finish(job=job.id, fence=job.fence, kind="complete", result=result, next=attempt.next, adds=attempt.adds)
    return Finish(job=job.id, fence=job.fence, kind="complete", result=result)


def raised(attempt: Attempt, error: BaseException) -> Finish | None:
    """It raised. None: the lease is lost, so there is nothing to be said."""
    job, why = attempt.job, attempt.why
    if isinstance(error, Outcome):
        return _asked(attempt, error)
    if why == "lost":
        return None
    if why == "stopping":
        # Whatever it raised, it was told to stop: a deploy uses up no attempt.
        return Finish(job=job.id, fence=job.fence, kind="release")
    if why == "cancelled":
        return Finish(job=job.id, fence=job.fence, kind="cancel")  # the store knows why
    if why == "timeout":
        late = failure(JobTimeout(job_id=job.id, type=job.type, timeout=attempt.soft - attempt.started), job.attempt)
        if isinstance(error, Abandoned):
            late = Failure(late.kind, f"{late.message}; {error}", "", job.attempt)
        elif not isinstance(error, asyncio.CancelledError):
            late = Failure(late.kind, late.message, trace_of(error), job.attempt)
        return retry(attempt, late)
    return unkept(attempt, error)


def unkept(attempt: Attempt, error: BaseException) -> Finish:
    """There is nothing to be kept of it but the error: again, unless that is pointless."""
    job = attempt.job
    said = failure(error, job.attempt)
    pointless = isinstance(error, POINTLESS) or (isinstance(error, Raised) and error.pointless)
    return Finish(job=job.id, fence=job.fence, kind="fail", error=said) if pointless else retry(attempt, said)


def retry(attempt: Attempt, said: Failure, after: float | None = None) -> Finish:
    """Again, as the back-off says; the store sends it to the dead letter when its attempts are used up."""
    job = attempt.job
    if after is None:
        try:
            after = (meta_of(job).backoff or attempt.definition.backoff).delay(job.attempt)
        except Exception as error:  # noqa: BLE001 - a back-off function of the user's
            after = 1.0
            said = Failure(said.kind, f"{said.message} (and its backoff raised {error!r})", said.trace, said.attempt)
    return Finish(job=job.id, fence=job.fence, kind="retry", delay=int(after * 1_000_000), error=said)


def stamped(finish: Finish, now: Micros) -> Finish:
    """With the time of its failure, if it is one."""
    if finish.error is None:
        return finish
    return replace(finish, error=replace(finish.error, at=now))


def unknown(job: Claimed, known: tuple[str, ...]) -> Finish:
    """Nobody here knows this type of job: another worker may, or this one after its next deploy."""
    delay = min(UNKNOWN_FIRST * 2 ** min(job.snoozes, 20), UNKNOWN_MOST)
    said = Failure("UnknownJob", str(UnknownJob(type=job.type, known=known, job_id=job.id)), "", job.attempt)
    return Finish(job=job.id, fence=job.fence, kind="snooze", delay=int(delay * 1_000_000), error=said)


def _asked(attempt: Attempt, outcome: Outcome) -> Finish:
    job = attempt.job
    match outcome:
        case Snooze():
            said = Failure("Snooze", _short(outcome.reason), "", job.attempt) if outcome.reason else None
            delay = int(outcome.seconds * 1_000_000)
            return Finish(job=job.id, fence=job.fence, kind="snooze", delay=delay, error=said)
        case Cancel():
            said = Failure("Cancel", _short(str(outcome)), "", job.attempt)
            return Finish(job=job.id, fence=job.fence, kind="cancel", error=said)
        case Skip():
            said = Failure("Skipped", str(outcome), "", job.attempt)
            return Finish(job=job.id, fence=job.fence, kind="skip", error=said)
        case Retry():
            return retry(attempt, Failure("Retry", _short(str(outcome)), "", job.attempt), outcome.after)
        case _:
            return retry(attempt, failure(outcome, job.attempt))


_METAS: dict[bytes, Meta] = {}
_MOST_METAS = 1000


def meta_of(job: Claimed) -> Meta:
    """What travels with a job. Most jobs of a type carry the same, so it is read once."""
    raw = job.meta
    if not raw:
        return metadata.PLAIN
    found = _METAS.get(raw)
    if found is None:
        if len(_METAS) >= _MOST_METAS:
            _METAS.clear()
        found = _METAS[raw] = metadata.unpack(raw)
    return found
