"""The announcer: publishes how many jobs of which type became pending. These are hints: workers also poll.

Announcements made in one turn of the event loop, or while earlier messages are being sent, are merged into one message
per job type. Consecutive messages are at least GAP seconds apart. Enqueueing never waits for an announcement.
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

#: Seconds that a closing Backstay waits until its last announcements are sent.
FLUSH_WAIT = 2.0
#: The pause (seconds) before the next message, if announcements were added while the last one was being sent. More
#: messages would not help: busy workers claim anyway, whenever one of their jobs finishes. If nothing is being sent, an
#: announcement is sent at once.
GAP = 0.002
#: A scheduled job that becomes due within this many µs, times the number of shards, is announced when it is enqueued.
#: Otherwise an idle worker, which polls at intervals (`producer.POLL`, longer with more shards), might find it too
#: late.
ANNOUNCED_WITHIN = 3_000_000
#: Seconds after which the idle announcer thread of a blocking Backstay ends.
IDLE = 5.0


class Announcer:
    """Publishes announcements of pending jobs. One per Backstay: `core.services.get(ANNOUNCER)`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._counts: Counter[str] = Counter()
        #: When (monotonic clock) an enqueue last announced its jobs itself.
        self._last_inline = 0.0

    def announces_inline(self, jobs: Sequence[NewJob]) -> bool:
        """Whether the request that enqueues these jobs also announces them (inline), which saves a message. This
        requires that the store supports it (`announces`), that hints travel through the store's engine, and that the
        last inline announcement was at least `announcement_gap` seconds ago. Scheduled and blocked jobs are always
        announced separately.
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
        """Emit the telemetry event of an inline announcement, one that the enqueueing request made itself."""
        self._core.telemetry.emit("hub.published", channel=SCHEDULED)

    def announce(self, ready: Mapping[str, int]) -> None:
        """Announce jobs that became pending (their number by type) without waiting until the message is sent. The async
        API calls this on the event loop, the blocking API on any thread.
        """
        raise NotImplementedError

    async def flush(self) -> None:
        """Wait until all announcements are sent, at most FLUSH_WAIT seconds."""
        raise NotImplementedError

    def close(self) -> None:
        """Send no more announcements; the announcer's task or thread ends. Safe to call twice."""
        raise NotImplementedError

    async def _send(self, counts: Mapping[str, int]) -> None:
        for type_, count in counts.items():
            with suppress(BackstayError):  # an announcement may be lost: workers also find the jobs by polling
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

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


class ThreadAnnouncer(Announcer):
    """The announcer of the blocking API: a thread that ends after IDLE seconds without work."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        #: Callers take this lock itself, never the condition: a signal handler that raises in the Python code of
        #: `Condition.__exit__` would leave the lock locked for ever.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closed = False

    def announce(self, ready: Mapping[str, int]) -> None:
        if not ready:
            return
        with self._lock:
            if self._closed:
                return
            self._counts.update(ready)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="backstay-announcer", daemon=True)
                try:
                    self._thread.start()
                except BaseException:  # no thread, or an interrupt: if the thread did start, `_run` ends it
                    self._thread = None
                    raise
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():
                    return
                self._busy = False
                self._changed.notify_all()
                if not self._counts and not self._closed:
                    self._changed.wait(IDLE)
                if not self._counts or self._closed:
                    self._thread = None
                    return
                counts, self._counts = self._counts, Counter()
                self._busy = True
            run(self._send(counts))
            if self._counts:
                time.sleep(GAP)

    async def flush(self) -> None:
        with self._lock:
            self._changed.wait_for(lambda: not self._counts and not self._busy, FLUSH_WAIT)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(FLUSH_WAIT)


def should_announce(core: Core, job: NewJob, done: Enqueued) -> bool:
    """Whether to announce a job that was just enqueued: it is pending, or becomes due before an idle worker's next
    poll. A job due after that poll needs no announcement: the poll's reply contains when the next job is due.
    """
    if done.deduplicated:
        return False
    if done.state == "scheduled":
        soon = ANNOUNCED_WITHIN * core.services.get(JOB_STORE).shards
        return job.delay < soon if job.delay else job.due < core.engine.now() + soon
    return done.state == "pending"


def _make_announcer(core: Core) -> Announcer:
    return LoopAnnouncer(core) if isinstance(core.port, AsyncPort) else ThreadAnnouncer(core)


ANNOUNCER: Service[Announcer] = Service(
    "job announcer",
    _make_announcer,
    flush=lambda announcer: announcer.flush(),
    close=lambda announcer: announcer.close(),
)
