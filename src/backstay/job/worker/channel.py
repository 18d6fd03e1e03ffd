"""Worker channels: carry a worker's exchanges to one shard, one at a time per channel, and survive lost replies.

Every exchange has a sequence number. If its reply is lost, the channel sends the exchange again with the same number
until a reply arrives; the shard stores its reply to each number and repeats it. Only then does the channel send the
next exchange. A worker has `Store.channels_per_shard` channels to each shard, so that several exchanges overlap.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backstay.engine.base import steady
from backstay.engine.jitter import RANDOM
from backstay.errors import EngineError, EngineRefused, OutcomeUnknown
from backstay.job.exchange import Claim, DirectHandoff, ExchangeCommand, ExchangeReply
from backstay.job.model import Finish
from backstay.runtime.lost_replies import COMMAND_LIFE_MICROS

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.runtime.core import Core

log = logging.getLogger("backstay")

#: Backoff before a failed exchange is sent again: the first pause and the longest one, in seconds. A restarting engine
#: usually answers within a second or two.
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
#: The longest pause while the engine refuses requests (EngineRefused), in seconds.
REFUSED_PAUSE = 2.0


@dataclass(slots=True)
class WorkerIdentity:
    """The worker's name and its incarnation, a random id. A shard stores the last sequence number that it got from each
    channel of an incarnation, and rejects lower ones. Of a new incarnation it has stored no number, so it accepts any.
    """

    worker: str
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))


def _ignore_handoff(reply: ExchangeReply, sent: float) -> None:
    """Do nothing: the default callback, for channels that receive no handoffs because they leave no waiting claim in
    the shard (`waiting_claim.py`).
    """


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
        identity: WorkerIdentity,
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
        #: Called with jobs that an enqueue has handed to this channel's waiting claim (`waiting_claim.py`), in two
        #: cases. The jobs came with the reply to a later exchange; or their message came during an exchange, so that
        #: `accept_handoff` returned False. The second argument is the time (monotonic clock) from which their leases
        #: count.
        self._on_handoff = on_handoff
        #: A handoff whose message arrived during an exchange. It may answer the claim of this exchange: the shard
        #: stored that claim as a waiting one, and the handoff came before the reply to the exchange.
        self._early_handoff: DirectHandoff | None = None
        #: The seq of the exchange that left a waiting claim in the shard (`waiting_claim.py`); 0: no claim waits.
        self.waiting_seq = 0
        #: When (monotonic clock) the last answered exchange was sent. If it left a waiting claim in the shard, the
        #: leases of jobs that are handed to this claim count from that time.
        self.claim_sent_at = 0.0
        #: Whether an exchange is under way.
        self.busy = False
        #: How many jobs the exchange under way claims.
        self.want = 0
        #: Whether the claim of the exchange under way may also return jobs that no announcement has reported.
        self.polls = False
        #: The announcements that limit the claim of the exchange under way: it takes from their counters
        #: (`notifications.py`) and returns no more jobs than they allow. Empty: no such limit.
        self.hints: tuple[str, ...] = ()
        #: Since when (monotonic clock) the engine does not answer; 0 while it does.
        self.unreachable_since = 0.0

    async def exchange(self, finishes: Sequence[Finish], claim: Claim) -> tuple[ExchangeReply, float]:
        """Carry out one exchange. After a lost reply or during an outage of the engine, send it again until it is
        answered. Returns the reply and when (monotonic clock) the answered request was sent: leases count from that
        time. Raises only errors that a retry would raise again.
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
            except EngineError as error:
                if error.is_permanent:
                    raise
                tries += 1
                # The first request may have been applied and only its reply lost. Then it has already taken from the
                # counters of the announcements, so the resent claim must not take from them again.
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
                    # The shard has stored a higher seq than this channel has sent. Only this channel should send under
                    # its incarnation, so it takes a new incarnation.
                    log.warning(
                        "worker %s starts a new incarnation: shard %d has already seen a higher sequence number of it",
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
                    if not reply.denied:  # denied: the counters of the announcements were used up, and nothing changed
                        self.waiting_seq = 0 if claim.waiting is None or reply.jobs else self._seq
                        self.claim_sent_at = sent
                    self._apply_early_handoff(reply)
                    return reply, sent
            command = replace(command, not_after=core.engine.now() + COMMAND_LIFE_MICROS)

    def accept_handoff(self, handoff: DirectHandoff) -> bool:
        """Return whether this handoff (jobs that an enqueue gave to a waiting claim) answers the claim that the channel
        left in the shard. If so, the channel has no waiting claim any longer.

        While an exchange is under way, return False and store the handoff: only the reply to the exchange shows which
        claim the handoff answers, and `_apply_early_handoff` then decides. The handoff may answer an earlier claim,
        which the exchange withdraws: then the exchange itself returns the same jobs. Or it may answer the claim of the
        exchange.
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
        """Apply the handoff that arrived during the exchange, if it answers the claim of this exchange. A handoff that
        answers an earlier claim is ignored: the shard has also returned its jobs in a reply (`handed_off`) to this
        exchange, unless another worker has claimed them since.
        """
        early, self._early_handoff = self._early_handoff, None
        if early is not None and early.seq == self.waiting_seq and early.reply.now >= reply.now:
            self.waiting_seq = 0
            self._on_handoff(early.reply, self.claim_sent_at)

    async def _back_off(self, error: EngineError, tries: int) -> None:
        now = steady()
        if not self.unreachable_since:
            self.unreachable_since = now
        self._core.telemetry.emit("job.exchange_retry", shard=self._shard, why=type(error).__name__, tries=tries)
        longest = REFUSED_PAUSE if isinstance(error, EngineRefused) else LONGEST_PAUSE
        pause = min(FIRST_PAUSE * 2 ** min(tries, 16), longest)
        pause = RANDOM.uniform(pause / 2, pause)
        if tries == 3:  # noqa: PLR2004 - a short interruption is not worth a warning
            log.warning("exchange failed, retrying in %.2f s: %s: %s", pause, type(error).__name__, error)
        if isinstance(error, OutcomeUnknown) and tries == 1:
            return  # send the exchange again at once, to learn its outcome
        await asyncio.sleep(pause)

    def _report_recovery(self) -> None:
        away = steady() - self.unreachable_since
        self.unreachable_since = 0.0
        self._core.telemetry.emit("job.exchange_recovered", shard=self._shard, after=away)
        if away > LONGEST_PAUSE:
            log.warning("the engine answers again after an outage of %.1f s", away)
