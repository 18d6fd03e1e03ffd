"""Waiting claims: an idle worker leaves its claim in the shard, and the next enqueue hands a job to it directly.

The enqueue leases the job to the worker in the same transaction and sends it to the worker's inbox, which saves the
announcement and the claim. A worker leaves a claim only while none of its handlers run: a job that is handed over
starts at once and never waits for a handler that blocks the event loop. The worker's next exchange withdraws the claim;
if the handoff message was lost, the reply to that exchange contains the job. A lost message costs time, nothing else.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from backstay.hub import protocol
from backstay.job.api.registry import JOB_TYPES
from backstay.job.model import WaitingClaimSpec
from backstay.job.reserved import INTERNAL

if TYPE_CHECKING:
    from backstay.job.worker.slots import QueueOrder
    from backstay.runtime.core import Core

#: Seconds by which a claim outlives the poll interval: the next poll replaces it before it expires.
OVERLAP = 1.0
#: A claim waits at most 1/PART of a lease: the worker counts the lease of a handed-over job from when it sent the
#: claim, the only time it knows for certain.
PART = 3
#: Beyond this many queues, or characters of type names, no claim waits: matching it would slow down every enqueue.
MOST_QUEUES, MOST_TYPES = 8, 8000


class WaitingClaim:
    """Builds the spec of a worker's waiting claims: its inbox, queues and job types."""

    def __init__(self, core: Core, order: QueueOrder, *, poll: float, lease: float) -> None:
        self._job_types = core.services.get(JOB_TYPES)
        self._queues = tuple(name for name in order.names if name != INTERNAL)
        self._lifetime = int(min(poll + OVERLAP, lease / PART) * 1_000_000)
        #: An unguessable name. A handoff must also name the worker channel's incarnation, which no other message holds.
        self.inbox = protocol.channel(core.hub_prefix, f"{protocol.HANDED}:{secrets.token_hex(8)}")
        #: Whether the subscription to the inbox is active.
        self.is_listening = False
        self._spec: WaitingClaimSpec | None = None
        self._known_types = -1

    def spec(self) -> WaitingClaimSpec | None:
        """Return the spec for a claim that may wait; None if it may not."""
        if not self.is_listening:
            return None
        if len(self._job_types) != self._known_types:  # definitions are only added, never removed
            self._known_types = len(self._job_types)
            types = "\0".join(("", *self._job_types, ""))
            fits = self._known_types and len(types) <= MOST_TYPES and 0 < len(self._queues) <= MOST_QUEUES
            self._spec = WaitingClaimSpec(self.inbox, self._lifetime, types, self._queues) if fits else None
        return self._spec
