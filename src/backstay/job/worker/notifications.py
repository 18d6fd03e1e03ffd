"""The worker's notification listener. It receives announcements of pending jobs, reports of lost leases, and handoffs:
jobs that an enqueue gives directly to this worker (`waiting_claim.py`).

An announcement of N jobs names a counter, which starts at N. Each worker takes as much from it as it has free slots, so
all workers together claim for about N slots (no thundering herd). A worker without free slots ignores announcements: it
claims again whenever one of its jobs finishes.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from backstay.errors import BackstayError
from backstay.hub import protocol
from backstay.job.store import JOB_STORE
from backstay.runtime import publishing

if TYPE_CHECKING:
    from backstay.hub.base import Subscription
    from backstay.job.exchange import Claimed
    from backstay.job.worker.producer import Producer
    from backstay.job.worker.slots import Slots
    from backstay.runtime.core import Core

#: Two limits: the most announcements that are queued, and the most job ids in `_unmatched`. Older ones are dropped,
#: because hints may be lost.
MOST_REMEMBERED = 100


class NotificationListener:
    """Listens to the hub while the worker runs. A lost message only delays jobs, because the worker also polls. The hub
    may call back on any thread.
    """

    def __init__(
        self,
        core: Core,
        slots: Slots,
        producer: Producer,
        accepts: Callable[[str], bool | None],
        recheck_lease: Callable[[str | None], None],
    ) -> None:
        self._core = core
        self._slots = slots
        self._producer = producer
        #: Returns whether this worker runs jobs of a type; None if it does not know the type.
        self._accepts = accepts
        #: What `accepts` returned, by job type. Cached for known types, whose definitions do not change.
        self._known: dict[str, bool] = {}
        self._recheck_lease = recheck_lease
        #: Whether a claim itself also takes from the counter of the announcement that caused it. Otherwise this
        #: listener takes from the counter in a request of its own, before the worker claims.
        self._claims_consume_hints = core.services.get(JOB_STORE).claims_consume_hints and core.hub_port is core.port
        self._read_handoff = core.services.get(JOB_STORE).read_handoff
        self._inbox: Subscription | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._hints: deque[str] = deque(maxlen=MOST_REMEMBERED)
        self._task: asyncio.Task[None] | None = None
        self._unmatched: dict[str, bool] = {}
        self._subscriptions: list[Subscription] = []

    def open(self) -> None:
        prefix = self._core.hub_prefix
        for name, callback in (
            (protocol.SCHEDULED, self._on_scheduled),
            (protocol.OWNERSHIP_LOST, self._on_ownership_lost),
        ):
            # The hub calls callback(None) when the subscription is active. Earlier messages were missed, so the
            # callback then rechecks all leases or polls all shards.
            self._subscriptions.append(
                self._core.hub.subscribe(protocol.channel(prefix, name), callback, partial(callback, None), prompt=True)
            )
        subscribe = getattr(self._core.hub, "subscribe_raw", None)
        if self._read_handoff is not None and self._claims_consume_hints and subscribe is not None:
            inbox: Subscription = subscribe(self._producer.waiting_claim.inbox, self._on_handoff, self._on_inbox_open)
            self._inbox = inbox
            self._subscriptions.append(inbox)

    def on_started(self, jobs: Sequence[Claimed]) -> None:
        """Recheck the lease of each started job that a message has already reported as lost or cancelled. Such a
        message arrived before the reply to the claim, when this worker did not know yet that it holds the job.
        """
        if self._unmatched:
            for job in jobs:
                if self._unmatched.pop(job.id, False):
                    self._recheck_lease(job.id)

    async def close(self) -> None:
        """Unsubscribe. Safe to call twice."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # ── callbacks, on the hub's thread ──

    def _on_ownership_lost(self, payload: str | None) -> None:
        if payload is None:
            self._recheck_lease(payload)
            return
        if len(self._unmatched) >= MOST_REMEMBERED:
            self._unmatched.clear()
        # Remember the id of the job whose lease was lost. Usually the job runs on another worker. But this worker may
        # also have claimed it without having received the reply yet. Then `on_started` rechecks the lease.
        self._unmatched[payload] = True
        if payload in self._slots.leased:  # checked last: a job that starts just now is found here or by `on_started`
            self._unmatched.pop(payload, None)
            self._recheck_lease(payload)

    def _on_scheduled(self, payload: str | None) -> None:
        if self._slots.busy >= self._slots.size:
            if len(self._producer.shards) > 1:
                # No slot is free now. When one of this worker's jobs finishes, the worker would claim only from the
                # shard of that job. But the announced jobs may be in another shard, so let it poll all shards then.
                self._call(self._producer.mark_dirty)
            return
        if payload is None:
            self._call(self._producer.poll_all)
            return
        parts = protocol.split_scheduled(payload)
        if parts is None:
            return
        kind, hint = parts
        accepted = self._known.get(kind)
        if accepted is None:
            accepted = self._accepts(kind)
            if accepted is None:
                return
            self._known[kind] = accepted
        if not accepted:
            # By its definition, the type is not for this worker. But the caller may have chosen another queue for the
            # job, which this worker serves.
            self._call(self._producer.poll_soon)
            return
        if self._claims_consume_hints:
            if threading.get_ident() == self._thread:
                self._producer.on_announcement(hint)
            else:
                self._call(partial(self._producer.on_announcement, hint))
            return
        self._hints.append(hint)
        if self._task is None:
            self._call(self._start_taking_hints)

    def _on_inbox_open(self) -> None:
        """Let the worker leave claims in the shards that wait for the next enqueue (`waiting_claim.py`). The enqueue
        sends the job to the worker's inbox, a hub channel. So do nothing if the subscription to the inbox failed.
        """
        if self._inbox is None or self._inbox.error is None:
            self._producer.waiting_claim.is_listening = True

    def _on_handoff(self, message: bytes | None) -> None:
        """Pass a handoff (a job that an enqueue gave to this worker) to the producer. If the message was lost, the
        worker's next exchange returns the job.
        """
        handoff = self._read_handoff(message) if self._read_handoff is not None and message is not None else None
        if handoff is not None:
            self._call(partial(self._producer.on_handoff, handoff))

    def _call(self, callback: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            callback()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(callback)

    # ── on the event loop ──

    def _start_taking_hints(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._take_hints())

    async def _take_hints(self) -> None:
        try:
            while self._hints:
                hint = self._hints.popleft()
                room = self._producer.spare_capacity()
                if room <= 0:
                    self._hints.clear()
                    self._producer.mark_dirty()
                    return
                with suppress(BackstayError):
                    if taken := await publishing.take_hint(self._core, hint, room):
                        self._producer.expect_jobs(taken)
        finally:
            self._task = None
