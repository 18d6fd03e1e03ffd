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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backstay.engine.base import steady
from backstay.errors import EngineError, EngineRefused, EngineUnavailable, OutcomeUnknown
from backstay.job.model import Claim, Finish, Handed, StepCommand, StepReply
from backstay.runtime.flows import PATIENCE_MICROS

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.runtime.core import Core

log = logging.getLogger("backstay")

#: The pause before a step is sent again: first, and at most. An engine that restarts is back within a second or two.
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
#: One that answers "no" is not asked as often.
REFUSED_PAUSE = 2.0


@dataclass(slots=True)
class Identity:
    """Whose steps these are. A new incarnation has no past: nothing is remembered for it."""

    worker: str
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))


def _unasked(reply: StepReply, sent: float) -> None:
    """For lanes whose claims never stand."""


class Lane:
    """One lane to one shard."""

    __slots__ = (
        "_core",
        "_early",
        "_handed",
        "_identity",
        "_number",
        "_seq",
        "_shard",
        "_store",
        "busy",
        "hints",
        "looks",
        "standing",
        "stood",
        "troubled",
        "want",
    )

    def __init__(
        self,
        core: Core,
        store: Store,
        identity: Identity,
        shard: int,
        number: int,
        handed: Callable[[StepReply, float], None] = _unasked,
    ) -> None:
        self._core = core
        self._store = store
        self._identity = identity
        self._shard = shard
        self._number = number
        self._seq = 0
        #: Takes what was handed to a claim that stood, and came with a later answer.
        self._handed = handed
        #: What came to the inbox while a step was under way: perhaps for that one, before its answer.
        self._early: Handed | None = None
        #: The seq whose claim stands in the shard, and when (steady) it left; 0: none does.
        self.standing = 0
        self.stood = 0.0
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
            unheard=self.standing,
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
                claim = replace(claim, hints=())
                command = replace(command, claim=claim)
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
                    self.standing = 0
                    command = replace(command, incarnation=incarnation, unheard=0)
                elif reply.handed:
                    self.standing = 0
                    self._handed(reply, sent)
                    claim = replace(claim, want=max(0, claim.want - len(reply.jobs)), stand=None)
                    command = replace(command, claim=claim, unheard=0)
                else:
                    if not reply.denied:  # else it is as it was
                        self.standing = 0 if claim.stand is None or reply.jobs else self._seq
                        self.stood = sent
                    self._catch_up(reply)
                    return reply, sent
            command = replace(command, not_after=core.engine.now() + PATIENCE_MICROS)

    def hears(self, handed: Handed) -> bool:
        """Whether this is the answer to the claim that stands: it does not any more. While a step is under way, it is
        kept: if that step takes the claim back, it brings the job, too; and if it leaves one, this may be the answer.
        """
        if handed.lane != f"{self._identity.worker}\0{self._identity.incarnation}\0{self._number}":
            return False
        if self.busy:
            self._early = handed
            return False
        if handed.seq != self.standing:
            return False
        self.standing = 0
        return True

    def _catch_up(self, answer: StepReply) -> None:
        """What was handed over before the answer was given is in the answer, or is somebody else's by now."""
        early, self._early = self._early, None
        if early is not None and early.seq == self.standing and early.reply.now >= answer.now:
            self.standing = 0
            self._handed(early.reply, self.stood)

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
