"""Waiting claims: an idle worker leaves its claim in the shard, and the next enqueue hands a job to it directly.

The enqueue leases the job to the worker in the same transaction and sends the job to the worker's inbox, a hub channel.
So no announcement is sent, and the worker needs no round trip to claim the job. A worker leaves a claim only while none
of its handlers run: a job that is handed over starts at once and never waits for a handler that blocks the event loop.
The worker's next exchange withdraws the claim. If the message with the job was lost, the reply to that exchange
contains the job. A lost message costs time, nothing else.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from backstay.hub import protocol
from backstay.job.api.registry import JOB_TYPES
from backstay.job.exchange import WaitingClaimSpec
from backstay.job.reserved import INTERNAL

if TYPE_CHECKING:
    from backstay.job.worker.slots import QueueOrder
    from backstay.runtime.core import Core

#: A claim waits this many seconds longer than the poll interval, so that the next poll replaces it before it expires.
OVERLAP = 1.0
#: A claim waits at most 1/LEASE_DIVISOR of a lease. The worker counts the lease of a job handed to it from when it sent
#: the claim, the only time that it knows for certain, so a long wait would use up the lease.
LEASE_DIVISOR = 3
#: The claims of a worker with more queues than this, or with more characters of job type names, never wait: matching
#: them would slow down every enqueue.
MOST_QUEUES, MOST_TYPES = 8, 8000


class WaitingClaim:
    """Builds the WaitingClaimSpec that a worker sends with a claim that may wait in the shard: the worker's inbox, its
    queues and job types, and how long the claim waits.
    """

    def __init__(self, core: Core, order: QueueOrder, *, poll: float, lease: float) -> None:
        self._job_types = core.services.get(JOB_TYPES)
        self._queues = tuple(name for name in order.names if name != INTERNAL)
        self._lifetime = int(min(poll + OVERLAP, lease / LEASE_DIVISOR) * 1_000_000)
        #: The name of the inbox, a hub channel. It is random, so that other clients cannot guess it. Besides, a worker
        #: ignores a handed-over job if the message does not contain the random id of this worker (its incarnation).
        self.inbox = protocol.channel(core.hub_prefix, f"{protocol.HANDOFF}:{secrets.token_hex(8)}")
        #: Whether the subscription to the inbox is active.
        self.is_listening = False
        self._spec: WaitingClaimSpec | None = None
        self._known_types = -1

    def spec(self) -> WaitingClaimSpec | None:
        """Return the spec that lets a claim wait in the shard. Returns None, so that the claim does not wait, while the
        inbox is not subscribed, or if the worker has too many queues or types.
        """
        if not self.is_listening:
            return None
        if len(self._job_types) != self._known_types:  # definitions are only added, never removed
            self._known_types = len(self._job_types)
            types = "\0".join(("", *self._job_types, ""))
            fits = self._known_types and len(types) <= MOST_TYPES and 0 < len(self._queues) <= MOST_QUEUES
            self._spec = WaitingClaimSpec(self.inbox, self._lifetime, types, self._queues) if fits else None
        return self._spec
