"""Error responses: every error of the server is an RFC 9457 problem with a status and a remedy, without a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backstay.errors import (
    BackstayError,
    BadArgument,
    BadDefinition,
    BadExpression,
    BadInput,
    Closed,
    ConfigError,
    CorruptRecord,
    EngineError,
    FingerprintMismatch,
    InProgress,
    JobNotFound,
    LeaseLost,
    LockHeld,
    LockTimeout,
    NotOwner,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    RateLimited,
    ReplayedFailure,
    RetryRefused,
    RunNotFound,
    RunTooLarge,
    UnknownJob,
    WorkflowNotFound,
)
from backstay.http.problem import problem

#: The Retry-After header of responses while the engine is unavailable, in seconds.
RETRY_AFTER = 1


class Refusal(Exception):
    """Handlers raise it to send an error response. `members` are added to the problem body; `close` closes the
    connection afterwards.
    """

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, close: bool = False, **members: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.body = problem(status, detail, **members)
        self.headers = dict(headers or {})
        if close:
            self.headers["connection"] = "close"


def not_found(what: str, name: str, hint: str = "") -> Refusal:
    return Refusal(404, f"there is no {what} {name[:200]!r}" + (f"; {hint}" if hint else ""))


#: The HTTP status of each Backstay error; the first class that matches wins.
STATUSES: tuple[tuple[type[BackstayError], int], ...] = (
    (JobNotFound, 404),
    (WorkflowNotFound, 404),
    (RunNotFound, 404),
    (RetryRefused, 409),
    (BadDefinition, 422),
    (BadInput, 422),
    (RunTooLarge, 422),
    (BadExpression, 422),
    (UnknownJob, 422),
    (BadArgument, 422),
    (PayloadTooLarge, 413),
    (ConfigError, 422),
    (LockHeld, 409),
    (LockTimeout, 409),
    (QueueFull, 503),
    (NotOwner, 409),
    (LeaseLost, 409),
    (InProgress, 409),
    (FingerprintMismatch, 422),
    (ReplayedFailure, 409),
    (RateLimited, 429),
)


def corrupt_record(detail: str) -> Refusal:
    """The response when a stored record cannot be decoded. Repeating the request does not help, so it has no
    Retry-After; the text names the record.
    """
    return Refusal(
        503, f"a stored record is damaged, or another version wrote it: {detail[:500]}", error="CorruptRecord"
    )


def refusal_for(error: BackstayError) -> Refusal:
    """Map a Backstay error to a response. The engine's message goes only to the log: it may name hosts and users."""
    if isinstance(error, CorruptRecord):
        return corrupt_record(str(error))
    if isinstance(error, (EngineError, Closed)):
        doubt = "; the request may or may not have taken effect" if isinstance(error, OutcomeUnknown) else ""
        return Refusal(
            503,
            f"the engine is unavailable{doubt}; send the request again later",
            headers={"retry-after": str(RETRY_AFTER)},
        )
    for kind, status in STATUSES:
        if isinstance(error, kind):
            return Refusal(status, str(error))
    return Refusal(409, str(error))
