"""Reconcile after an outage: charge the engine with what this process admitted while the engine was unavailable.

The keeper runs it in the background. Until the engine has all charges, this process keeps deciding locally, so that
every admitted hit is charged. A charge whose reply was lost is sent again: charging a hit twice is safer than not
charging it.
"""

from __future__ import annotations

from backstay.engine.base import Expired, Ping, steady
from backstay.errors import EngineError, EngineRefused, EngineUnavailable, OutcomeUnknown
from backstay.limit.local_fallback import LocalFallback, PendingCharge
from backstay.runtime.core import Core

#: The errors after which the policy decides instead of the engine. CorruptRecord is not among them, because it must be
#: reported to the caller.
UNAVAILABLE_ERRORS = (EngineUnavailable, OutcomeUnknown, EngineRefused)
#: How many records are charged in one round trip.
CHUNK = 1000
#: The most rounds of charging. During a round, this process may admit further hits, which the next round charges. After
#: the last round the engine decides again, and the keeper sends the charges that are left (`Keeper.send_later`).
ROUNDS = 5
#: Seconds for which the keeper retries the charges that are left after the last round.
CHARGE_SECONDS = 60.0


def reconcile(core: Core, fallback: LocalFallback, timeout: float) -> bool:
    """Try once to charge the engine with all local records. Returns True if the engine has all charges and decides from
    now on.
    """
    if not fallback.reconciling.acquire(blocking=False):
        return False  # the keeper of another Backstay on this engine is reconciling
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
    core.telemetry.emit("limit.recovered", reconciled=records)
    return True


def _send_charges(core: Core, fallback: LocalFallback, pending: list[PendingCharge], timeout: float) -> bool:
    failure: BaseException | None = None
    replies = core.engine.apply_many([one.charge for one in pending], timeout)
    for one, reply in zip(pending, replies, strict=True):
        if isinstance(reply, UNAVAILABLE_ERRORS):
            failure = reply
        elif isinstance(reply, Expired):
            core.engine.correct_clock(reply.now)  # this charge stays pending, and the next round sends it again
        else:
            if isinstance(reply, EngineError):  # a damaged record: the next hit on it raises CorruptRecord
                core.telemetry.emit("limit.charge_dropped", record=one.record, error=type(reply).__name__)
            fallback.mark_charged(one.record, one.local)
    if failure is not None:
        fallback.last_error = str(failure)
    return failure is None
