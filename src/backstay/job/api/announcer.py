"""The announcer: publishes how many jobs of which type became pending. These are hints: workers also poll.

Announcements of one event loop turn are merged into one message per type; while one is being sent, the next ones are
merged, and a stream of them is rate-limited. Enqueueing never waits for an announcement.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from backstay.engine.base import steady
from backstay.errors import BackstayError
from backstay.hub.protocol import SCHEDULED
from backstay.job.model import Enqueued, NewJob
from backstay.job.store import JOB_STORE
from backstay.runtime import publishing
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.port import AsyncPort
from backstay.runtime.services import Service

#: Seconds that closing waits for the last announcement.
FLUSH_WAIT = 2.0
#: Shortest interval between announcements, in seconds: busy workers need no more. The first one never waits.
GAP = 0.002
#: A scheduled job that is due within this time (µs, times the number of shards) is announced too. It is slightly more
#: than `producer.POLL`; each of several shards is polled correspondingly less often.
SOON = 3_000_000
#: Seconds after which the idle announcer thread of a blocking Backstay ends.
IDLE = 5.0


class Announcer:
    """Publishes announcements of pending jobs. One per Backstay: `core.services.get(ANNOUNCER)`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._counts: Counter[str] = Counter()
        #: When (steady) announcements last went inline with their jobs.
        self._last_inline = 0.0

    def announces_inline(self, jobs: Sequence[NewJob]) -> bool:
        """Whether the enqueue itself announces the jobs that start at once: the store supports it, hints travel through
        its engine, and it is cheaper. The other jobs are announced afterwards, as usual.
        """
        core, store = self._core, self._core.services.get(JOB_STORE)
        if not store.announces or core.hub_port is not core.port:
            return False
        if store.announcement_gap:
            now = steady()
            if (
                self._counts
                or now < self._last_inline + store.announcement_gap
                or not any(job.starts_at_once for job in jobs)
            ):
                return False
            self._last_inline = now
        return True

    def record_inline(self) -> None:
        """Record that an enqueue has announced its jobs itself."""
        self._core.telemetry.emit("hub.published", channel=SCHEDULED)

    def announce(self, ready: Mapping[str, int]) -> None:
        """Announce jobs that became pending, by type, without waiting. Call it on the event loop, or on any thread of a
        blocking Backstay.
        """
        raise NotImplementedError

    async def flush(self) -> None:
        """Wait until all announcements are sent, at most FLUSH_WAIT seconds."""
        raise NotImplementedError

    async def _send(self, counts: Mapping[str, int]) -> None:
        for type_, count in counts.items():
            with suppress(BackstayError):  # polling finds them
                await publishing.publish_scheduled(self._core, type_, count)


class LoopAnnouncer(Announcer):
    """The announcer of the async API: a task that runs while there is something to announce."""

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
                await asyncio.sleep(0)  # tasks woken by the same reply may add their announcements
                if self._counts:
                    await asyncio.sleep(GAP)
        finally:
            self._task = None

    async def flush(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=FLUSH_WAIT)


class ThreadAnnouncer(Announcer):
    """The announcer of the blocking API: a thread that ends after IDLE seconds without work."""

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


def should_announce(core: Core, job: NewJob, done: Enqueued) -> bool:
    """Whether to announce an enqueued job: it is pending, or becomes due before an idle worker's next poll. Every poll
    returns when the next job is due, so later ones need no announcement.
    """
    if done.deduplicated:
        return False
    if done.state == "scheduled":
        soon = SOON * core.services.get(JOB_STORE).shards
        return job.delay < soon if job.delay else job.due < core.engine.now() + soon
    return done.state == "pending"


def _make_announcer(core: Core) -> Announcer:
    return LoopAnnouncer(core) if isinstance(core.port, AsyncPort) else ThreadAnnouncer(core)


ANNOUNCER: Service[Announcer] = Service("job announcer", _make_announcer, flush=lambda announcer: announcer.flush())
