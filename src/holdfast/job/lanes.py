"""A worker's lanes: how its steps reach a shard, one at a time in each lane, and survive lost replies.

A step is numbered. Whatever happened to one, the same number is asked again until there is an answer; the shard
remembers what it did for that number and says so. The next number is used only then. Two lanes keep the pipe full;
a store says how many are of use.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.engine.base import steady
from holdfast.errors import EngineError, EngineRefused, EngineUnavailable, OutcomeUnknown
from holdfast.flow import PATIENCE_MICROS
from holdfast.job.model import Claim, Finish, StepCommand, StepReply

if TYPE_CHECKING:
    from holdfast.core import Core
    from holdfast.job.store import Store

log = logging.getLogger("holdfast")

#: The pause before a step is sent again: first, and at most. An engine that restarts is back within a second or two.
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
#: One that answers "no" is not asked as often.
REFUSED_PAUSE = 2.0


@dataclass(slots=True)
class Identity:
    """Whose steps these are. A new incarnation has no past: nothing is remembered for it."""

    worker: str
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))


class Lane:
    """One lane to one shard."""

    __slots__ = (
        "_core",
        "_identity",
        "_number",
        "_seq",
        "_shard",
        "_store",
        "busy",
        "hints",
        "looks",
        "troubled",
        "want",
    )

    def __init__(self, core: Core, store: Store, identity: Identity, shard: int, number: int) -> None:
        self._core = core
        self._store = store
        self._identity = identity
        self._shard = shard
        self._number = number
        self._seq = 0
        #: A step is under way.
        self.busy = False
        #: What the step under way asks for, and whether it looks for whatever there is.
        self.want = 0
        self.looks = False
        #: The announcements that it comes for, and nothing else.
        self.hints: tuple[str, ...] = ()
        #: Since when (steady) the engine has not answered; 0: it does.
        self.troubled = 0.0

    async def step(self, finishes: Sequence[Finish], claim: Claim) -> tuple[StepReply, float]:
        """Carry out one step, through lost replies and absences of the engine, however long. Answers the reply, and
        when (steady) the request left that was answered: leases count from there. Raises what another copy of the
        request would raise, too.
        """
        core = self._core
        self._seq += 1
        incarnation = self._identity.incarnation
        command = StepCommand(
            shard=self._shard,
            worker=self._identity.worker,
            incarnation=incarnation,
            lane=self._number,
            seq=self._seq,
            finishes=tuple(finishes),
            claim=claim,
            not_after=core.engine.now() + PATIENCE_MICROS,
        )
        tries = 0
        while True:
            sent = steady()
            try:
                reply = await core.port.apply(self._store.step(command))
            except (OutcomeUnknown, EngineUnavailable, EngineRefused) as error:
                if isinstance(error, EngineRefused) and error.pointless:
                    raise
                tries += 1
                # The counters may have been taken from already: it looks for whatever there is.
                command = replace(command, claim=replace(claim, hints=()))
                await self._trouble(error, tries)
            else:
                if self.troubled:
                    self._recovered()
                if reply.expired:
                    core.engine.correct(reply.now)
                    tries += 1
                    if tries > 1:
                        await asyncio.sleep(FIRST_PAUSE)
                elif reply.stale:
                    # Somebody else used our lane; as nobody else can, the shard's memory and ours have parted.
                    log.warning("worker %s begins a new incarnation: shard %d is ahead", command.worker, self._shard)
                    if self._identity.incarnation == incarnation:
                        self._identity.incarnation = secrets.token_hex(8)
                    incarnation = self._identity.incarnation
                    command = replace(command, incarnation=incarnation)
                else:
                    return reply, sent
            command = replace(command, not_after=core.engine.now() + PATIENCE_MICROS)

    async def _trouble(self, error: EngineError, tries: int) -> None:
        now = steady()
        if not self.troubled:
            self.troubled = now
        self._core.telemetry.emit("job.step_again", shard=self._shard, why=type(error).__name__, tries=tries)
        if tries == 3:  # noqa: PLR2004 - not for a hiccup
            log.warning("the engine does not take a worker's step; trying on: %s: %s", type(error).__name__, error)
        if isinstance(error, OutcomeUnknown) and tries == 1:
            return  # the unresolved number goes first, at once
        longest = REFUSED_PAUSE if isinstance(error, EngineRefused) else LONGEST_PAUSE
        pause = min(FIRST_PAUSE * 2 ** min(tries, 16), longest)
        await asyncio.sleep(random.uniform(pause / 2, pause))

    def _recovered(self) -> None:
        away = steady() - self.troubled
        self.troubled = 0.0
        self._core.telemetry.emit("job.step_recovered", shard=self._shard, after=away)
        if away > LONGEST_PAUSE:
            log.warning("the engine answers again after %.1f s", away)
