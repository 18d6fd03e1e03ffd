"""Tells workers that jobs became pending: how many of which type. Hints: workers look by themselves, too.

What is announced in one turn goes out together, one message for each type; while one is on its way the next gathers,
and a stream of them is thinned out. Nobody who enqueues waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

from backstay.channel import listeners
from backstay.engine.base import steady
from backstay.errors import BackstayError
from backstay.hub.protocol import SCHEDULED
from backstay.job.api.registry import store_of
from backstay.job.model import Enqueued, NewJob
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.port import AsyncPort

#: How long closing waits for the last announcement.
FLUSH_WAIT = 2.0
#: Where one announcement follows another, they are this far apart: workers that are busy need no more of them. The
#: first one never waits.
GAP = 0.002
#: A job that is due sooner (µs) is announced, too: a little more than `dispatch.POLL`. Of several shards each is looked
#: at so much less often.
SOON = 3_000_000
#: How long the thread of a blocking Backstay stays without work.
IDLE = 5.0


class Announcer:
    """One for each Backstay; made by `announcer_of`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._counts: Counter[str] = Counter()
        #: When (steady) announcements last went along with their jobs.
        self._along = 0.0

    def goes_along(self, jobs: Sequence[NewJob]) -> bool:
        """Whether those of these jobs that start at once are announced by the very step that makes them: the store can,
        hints travel through its engine, and it pays. The others are announced behind it, as ever.
        """
        core, store = self._core, store_of(self._core)
        if not store.announces or core.post is not core.port:
            return False
        if store.gap:
            now = steady()
            if self._counts or now < self._along + store.gap or not any(job.starts_at_once for job in jobs):
                return False
            self._along = now
        return True

    def went_along(self) -> None:
        """They are stored, and announced."""
        self._core.telemetry.emit("hub.published", channel=SCHEDULED)

    def announce(self, ready: Mapping[str, int]) -> None:
        """Jobs by type that became pending. From the event loop, or from any thread of a blocking Backstay."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Wait until everything that was announced is out, or cannot be."""
        raise NotImplementedError

    async def _send(self, counts: Mapping[str, int]) -> None:
        for type_, count in counts.items():
            with suppress(BackstayError):  # polling finds them
                await listeners.publish_scheduled(self._core, type_, count)


class LoopAnnouncer(Announcer):
    """On an event loop: one task while there is something to say."""

    _task: asyncio.Task[None] | None = None

    def announce(self, ready: Mapping[str, int]) -> None:
        if not ready:
            return
        self._counts.update(ready)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._counts:
                counts, self._counts = self._counts, Counter()
                await self._send(counts)
                await asyncio.sleep(0)  # whoever was answered together with us says what he has to say
                if self._counts:
                    await asyncio.sleep(GAP)
        finally:
            self._task = None

    async def flush(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=FLUSH_WAIT)


class ThreadAnnouncer(Announcer):
    """Beside threads: one of its own, which ends when it has had nothing to do for a while."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False

    def announce(self, ready: Mapping[str, int]) -> None:
        if not ready:
            return
        with self._lock:
            self._counts.update(ready)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="backstay-announcer", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                self._lock.notify_all()
                if not self._counts:
                    self._lock.wait(IDLE)
                if not self._counts:
                    self._thread = None
                    return
                counts, self._counts = self._counts, Counter()
                self._busy = True
            run(self._send(counts))
            if self._counts:
                time.sleep(GAP)

    async def flush(self) -> None:
        with self._lock:
            self._lock.wait_for(lambda: not self._counts and not self._busy, FLUSH_WAIT)


def worth_a_look(core: Core, job: NewJob, done: Enqueued) -> bool:
    """Whether workers are told: it is pending, or becomes so before an idle worker would look by itself, which is told
    with every look when the next job is due.
    """
    if done.deduplicated:
        return False
    if done.state == "scheduled":
        soon = SOON * store_of(core).shards
        return job.delay < soon if job.delay else job.due < core.engine.now() + soon
    return done.state == "pending"


def announcer_of(core: Core) -> Announcer:
    """The Backstay's own. A forked child begins with a new one."""
    announcer = core.notes.get("job.announcer")
    if announcer is None:
        kind = LoopAnnouncer if isinstance(core.port, AsyncPort) else ThreadAnnouncer
        announcer = core.notes["job.announcer"] = kind(core)
    return cast("Announcer", announcer)
