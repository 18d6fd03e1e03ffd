"""Reconcile after an outage: charge the engine with what this process admitted while the engine was unavailable.

The keeper runs it in the background. Until the engine has all charges, this process keeps deciding locally, so that no
hit is lost in between. A charge whose reply was lost is sent again: charging twice is safer than not at all.
"""

from __future__ import annotations

from backstay.engine.base import Expired, Ping, steady
from backstay.errors import EngineError, EngineRefused, EngineUnavailable, OutcomeUnknown
from backstay.limit.local_fallback import LocalFallback, PendingCharge
from backstay.runtime.core import Core

#: The errors after which the policy decides instead of the engine. CorruptRecord is not one: the policy would hide it.
AWAY = (EngineUnavailable, OutcomeUnknown, EngineRefused)
#: Records charged in one round trip.
CHUNK = 1000
#: How often to charge what was admitted during the previous round. The keeper sends the rest asynchronously.
ROUNDS = 5
#: Seconds for which the keeper retries that rest.
CHARGE_SECONDS = 60.0


def reconcile(core: Core, fallback: LocalFallback, timeout: float) -> bool:
    """Make one attempt. True: the engine has all charges and decides from now on."""
    if not fallback.reconciling.acquire(blocking=False):
        return False  # the keeper of another Backstay over this engine is reconciling
    try:
        return _attempt(core, fallback, timeout)
    finally:
        fallback.reconciling.release()


def _attempt(core: Core, fallback: LocalFallback, timeout: float) -> bool:
    engine = core.engine
    (clock,) = engine.apply_many([Ping()], timeout)
    if isinstance(clock, BaseException):
        fallback.last_error = str(clock)
        return False
    engine.correct_clock(clock)
    records = 0
    for _ in range(ROUNDS):
        pending = fallback.pending_charges(engine.now())
        for begin in range(0, len(pending), CHUNK):
            if not _send_charges(core, fallback, pending[begin : begin + CHUNK], timeout):
                return False
        records += len(pending)
        if not pending:
            break
    for one in fallback.resume_engine(engine.now()):
        core.keeper.send_later(one.charge, steady() + CHARGE_SECONDS)
    core.telemetry.emit("limit.back", handed_over=records)
    return True


def _send_charges(core: Core, fallback: LocalFallback, pending: list[PendingCharge], timeout: float) -> bool:
    away: BaseException | None = None
    answers = core.engine.apply_many([one.charge for one in pending], timeout)
    for one, answer in zip(pending, answers, strict=True):
        if isinstance(answer, AWAY):
            away = answer
        elif isinstance(answer, Expired):
            core.engine.correct_clock(answer.now)  # the next round sends this charge again
        else:
            if isinstance(answer, EngineError):  # a damaged record: the next hit on it raises CorruptRecord
                core.telemetry.emit("limit.untold", record=one.record, error=type(answer).__name__)
            fallback.mark_charged(one.record, one.local)
    if away is not None:
        fallback.last_error = str(away)
    return away is None
