"""When the engine is back: telling it what was admitted in its absence. The keeper's errand, whoever calls meanwhile.

Until the engine has heard it all, this process goes on counting by itself, so that nothing is forgotten in between. A
charge whose reply was lost is told again: rather too much than too little.
"""

from __future__ import annotations

from backstay.engine.base import Expired, Ping, steady
from backstay.errors import EngineError, EngineRefused, EngineUnavailable, OutcomeUnknown
from backstay.limit.local_fallback import Desk, Untold
from backstay.runtime.core import Core

#: What makes a policy answer in the engine's place. A damaged record does not: nobody would ever hear of it.
AWAY = (EngineUnavailable, OutcomeUnknown, EngineRefused)
#: Records told to the engine in one trip.
CHUNK = 1000
#: How often it is told what was admitted while it was told the rest; the last of it goes on its own.
ROUNDS = 5
#: How long the keeper tries to tell that (s).
TELL = 60.0


def hand_over(core: Core, desk: Desk, timeout: float) -> bool:
    """One attempt. True: the engine knows everything, and decides from now on."""
    if not desk.telling.acquire(blocking=False):
        return False  # the keeper of another Backstay over this engine is at it
    try:
        return _attempt(core, desk, timeout)
    finally:
        desk.telling.release()


def _attempt(core: Core, desk: Desk, timeout: float) -> bool:
    engine = core.engine
    (clock,) = engine.apply_many([Ping()], timeout)
    if isinstance(clock, BaseException):
        desk.trouble = str(clock)
        return False
    engine.correct(clock)
    records = 0
    for _ in range(ROUNDS):
        untold = desk.untold(engine.now())
        for begin in range(0, len(untold), CHUNK):
            if not _tell(core, desk, untold[begin : begin + CHUNK], timeout):
                return False
        records += len(untold)
        if not untold:
            break
    for one in desk.back(engine.now()):
        core.keeper.later(one.charge, steady() + TELL)
    core.telemetry.emit("limit.back", handed_over=records)
    return True


def _tell(core: Core, desk: Desk, untold: list[Untold], timeout: float) -> bool:
    away: BaseException | None = None
    answers = core.engine.apply_many([one.charge for one in untold], timeout)
    for one, answer in zip(untold, answers, strict=True):
        if isinstance(answer, AWAY):
            away = answer
        elif isinstance(answer, Expired):
            core.engine.correct(answer.now)  # told in the next round
        else:
            if isinstance(answer, EngineError):  # a damaged record: whoever hits it hears of it
                core.telemetry.emit("limit.untold", record=one.record, error=type(answer).__name__)
            desk.told(one.record, one.local)
    if away is not None:
        desk.trouble = str(away)
    return away is None
