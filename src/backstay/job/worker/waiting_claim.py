"""What a worker without work leaves in its shard, so that whoever enqueues a job can hand it over in the same step: no
message that there is one, no claim that fetches it.

A worker leaves its claim only while no handler runs in it: what is handed over begins at once, and no handler that
holds up the loop can keep it waiting. The claim goes with the worker's next step, whatever that is for; a job that was
handed over unheard comes with the answer to it. So a lost message costs time, as a lost hint does.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from backstay.hub import protocol
from backstay.job.model import Stand
from backstay.job.reserved import INTERNAL

if TYPE_CHECKING:
    from backstay.job.worker.slots import Order
    from backstay.runtime.core import Core

#: How much longer than until the next look a claim stands, in seconds: it is to be replaced, not to run out.
OVERLAP = 1.0
#: The part of a lease for which it stands at most. The lease of what is handed over counts from when the claim was
#: left, which is all that the worker is sure of.
PART = 3
#: With more of these every look would be long.
MOST_QUEUES, MOST_TYPES = 8, 8000


class Standing:
    """A worker's way to say where it may be handed jobs."""

    def __init__(self, core: Core, order: Order, *, poll: float, lease: float) -> None:
        self._core = core
        self._queues = tuple(name for name in order.names if name != INTERNAL)
        self._life = int(min(poll + OVERLAP, lease / PART) * 1_000_000)
        #: Nobody can guess it; what a message must say besides, its lane's incarnation, is nowhere on the wire.
        self.inbox = protocol.channel(core.hub_prefix, f"{protocol.HANDED}:{secrets.token_hex(8)}")
        #: Whether the inbox is heard.
        self.open = False
        self._stand: Stand | None = None
        self._known = -1

    def stand(self) -> Stand | None:
        """What a claim says that may stand; None: it may not."""
        if not self.open:
            return None
        if len(self._core.jobs) != self._known:  # a definition stays one
            self._known = len(self._core.jobs)
            types = "\0".join(("", *self._core.jobs, ""))
            fits = self._known and len(types) <= MOST_TYPES and 0 < len(self._queues) <= MOST_QUEUES
            self._stand = Stand(self.inbox, self._life, types, self._queues) if fits else None
        return self._stand
