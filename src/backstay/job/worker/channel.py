"""Worker channels: carry a worker's exchanges to one shard, one at a time per channel, and survive lost replies.

Every exchange has a sequence number. After a lost reply the channel sends the same number again until a reply arrives;
the shard stores what it did for that number and replies the same. Only then does the channel use the next number. Two
channels keep the connection busy; `Store.channels_per_shard` is the useful number.
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
from backstay.job.model import Claim, DirectHandoff, ExchangeCommand, ExchangeReply, Finish
from backstay.runtime.flows import COMMAND_LIFE_MICROS

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.runtime.core import Core

log = logging.getLogger("backstay")

#: Backoff before an exchange is sent again: the first pause and the longest one, in seconds. A restarting engine is
#: usually back within a second or two.
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
#: The longest pause while the engine refuses requests (EngineRefused), in seconds.
REFUSED_PAUSE = 2.0


@dataclass(slots=True)
class Identity:
    """The worker's name and incarnation. A shard has no stored replies for a new incarnation."""

    worker: str
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))


def _ignore_handoff(reply: ExchangeReply, sent: float) -> None:
    """Default callback of channels whose claims never wait in the shard."""


class WorkerChannel:
    """One numbered request channel from a worker to one shard. At most one exchange is under way at a time."""

    __slots__ = (
        "_core",
        "_early_handoff",
        "_identity",
        "_number",
        "_on_handoff",
        "_seq",
        "_shard",
        "_store",
        "busy",
        "claim_sent_at",
        "hints",
        "polls",
        "unreachable_since",
        "waiting_seq",
        "want",
    )

    def __init__(
        self,
        core: Core,
        store: Store,
        identity: Identity,
        shard: int,
        number: int,
        on_handoff: Callable[[ExchangeReply, float], None] = _ignore_handoff,
    ) -> None:
        self._core = core
        self._store = store
        self._identity = identity
        self._shard = shard
        self._number = number
        self._seq = 0
        #: Receives the jobs of a direct handoff that arrived with a later reply.
        self._on_handoff = on_handoff
        #: A handoff that came to the inbox during an exchange: it may belong to that exchange and precede its reply.
        self._early_handoff: DirectHandoff | None = None
        #: The seq whose claim waits in the shard (0: none), and when (monotonic clock) it was sent.
        self.waiting_seq = 0
        self.claim_sent_at = 0.0
        #: Whether an exchange is under way.
        self.busy = False
        #: How many jobs the exchange under way claims, and whether it claims jobs beyond those announced.
        self.want = 0
        self.polls = False
        #: The announcements to which the exchange under way limits its claim.
        self.hints: tuple[str, ...] = ()
        #: Since when (monotonic clock) the engine does not answer; 0 while it does.
        self.unreachable_since = 0.0

    async def exchange(self, finishes: Sequence[Finish], claim: Claim) -> tuple[ExchangeReply, float]:
        """Carry out one exchange; retry through lost replies and outages of the engine for as long as they last.
        Returns the reply and when (monotonic clock) the answered request was sent: leases count from there. Raises only
        errors that a retry would raise again.
        """
        core = self._core
        self._seq += 1
        incarnation = self._identity.incarnation
        command = ExchangeCommand(
            shard=self._shard,
            worker=self._identity.worker,
            incarnation=incarnation,
            channel=self._number,
            seq=self._seq,
            finishes=tuple(finishes),
            claim=claim,
            not_after=core.engine.now() + COMMAND_LIFE_MICROS,
            waiting_seq=self.waiting_seq,
        )
        tries = 0
        while True:
            sent = steady()
            try:
                reply = await core.port.apply(self._store.exchange(command))
            except (OutcomeUnknown, EngineUnavailable, EngineRefused) as error:
                if isinstance(error, EngineRefused) and error.is_permanent:
                    raise
                tries += 1
                # The lost request may have used up the announcement counters, so claim without them.
                claim = replace(claim, hints=())
                command = replace(command, claim=claim)
                await self._back_off(error, tries)
            else:
                if self.unreachable_since:
                    self._report_recovery()
                if reply.expired:
                    core.engine.correct_clock(reply.now)
                    tries += 1
                    if tries > 1:
                        await asyncio.sleep(FIRST_PAUSE)
                elif reply.stale:
                    # The shard has a higher seq than this channel, which is its only user: their states diverged.
                    log.warning(
                        "worker %s starts a new incarnation: shard %d is ahead of its channel",
                        command.worker,
                        self._shard,
                    )
                    if self._identity.incarnation == incarnation:
                        self._identity.incarnation = secrets.token_hex(8)
                    incarnation = self._identity.incarnation
                    self.waiting_seq = 0
                    command = replace(command, incarnation=incarnation, waiting_seq=0)
                elif reply.handed_off:
                    self.waiting_seq = 0
                    self._on_handoff(reply, sent)
                    claim = replace(claim, want=max(0, claim.want - len(reply.jobs)), waiting=None)
                    command = replace(command, claim=claim, waiting_seq=0)
                else:
                    if not reply.denied:  # a denied exchange changes nothing
                        self.waiting_seq = 0 if claim.waiting is None or reply.jobs else self._seq
                        self.claim_sent_at = sent
                    self._apply_early_handoff(reply)
                    return reply, sent
            command = replace(command, not_after=core.engine.now() + COMMAND_LIFE_MICROS)

    def accept_handoff(self, handoff: DirectHandoff) -> bool:
        """Whether this handoff answers the waiting claim, which then waits no more. During an exchange the handoff is
        kept instead: if the exchange withdraws the claim, its reply contains the job too; if the exchange leaves a new
        claim, the handoff may be the answer to that one.
        """
        if handoff.channel != f"{self._identity.worker}\0{self._identity.incarnation}\0{self._number}":
            return False
        if self.busy:
            self._early_handoff = handoff
            return False
        if handoff.seq != self.waiting_seq:
            return False
        self.waiting_seq = 0
        return True

    def _apply_early_handoff(self, reply: ExchangeReply) -> None:
        """Apply the handoff that arrived during the exchange, if it is newer than the reply. The jobs of an older
        handoff are in the reply, or leased to another worker by now.
        """
        early, self._early_handoff = self._early_handoff, None
        if early is not None and early.seq == self.waiting_seq and early.reply.now >= reply.now:
            self.waiting_seq = 0
            self._on_handoff(early.reply, self.claim_sent_at)

    async def _back_off(self, error: EngineError, tries: int) -> None:
        now = steady()
        if not self.unreachable_since:
            self.unreachable_since = now
        self._core.telemetry.emit("job.step_again", shard=self._shard, why=type(error).__name__, tries=tries)
        longest = REFUSED_PAUSE if isinstance(error, EngineRefused) else LONGEST_PAUSE
        pause = min(FIRST_PAUSE * 2 ** min(tries, 16), longest)
        pause = random.uniform(pause / 2, pause)
        if tries == 3:  # noqa: PLR2004 - a short interruption is not worth a warning
            log.warning("exchange failed, retrying in %.2f s: %s: %s", pause, type(error).__name__, error)
        if isinstance(error, OutcomeUnknown) and tries == 1:
            return  # resolve the unknown outcome at once
        await asyncio.sleep(pause)

    def _report_recovery(self) -> None:
        away = steady() - self.unreachable_since
        self.unreachable_since = 0.0
        self._core.telemetry.emit("job.step_recovered", shard=self._shard, after=away)
        if away > LONGEST_PAUSE:
            log.warning("the engine answers again after an outage of %.1f s", away)
