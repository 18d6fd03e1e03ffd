"""`hf.worker(...)`: how an async Holdfast makes a worker, and what may be said about one."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core import Core
from holdfast.inputs import Duration
from holdfast.job.slots import Queues
from holdfast.job.worker import CONCURRENCY, Worker


class WorkerDoor:
    """The door of an async Holdfast to its workers."""

    _core: Core

    def worker(
        self,
        *,
        queues: Queues = ("default",),
        labels: Iterable[str] = (),
        concurrency: int = CONCURRENCY,
        lease: Duration = 30,
        drain: Duration = 30,
        grace: Duration = 5,
        blocked_after: Duration = 1,
        signals: bool = True,
        name: str = "",
    ) -> Worker:
        """Somebody who runs jobs: `await hf.worker(queues=["default"], concurrency=100).run()`.

        queues: names, best first by priority and age over all of them; or weights, {"mail": 3, "default": 1}.
        labels: what this worker has; it takes jobs that ask for nothing else. concurrency: how many at once.
        lease: seconds until its jobs go to others when it dies; renewed while it lives. drain: seconds that a stop
        waits for what runs. grace: seconds a handler has to end once it is told to. blocked_after: warn when the event
        loop stands still for so long (0: never). signals: SIGTERM and Ctrl-C stop it, unless the program hears them
        itself. name: what it is called; made up unless given, and never to be shared.
        """
        return Worker(
            self._core,
            queues=queues,
            labels=labels,
            concurrency=concurrency,
            lease=lease,
            drain=drain,
            grace=grace,
            blocked_after=blocked_after,
            signals=signals,
            name=name,
        )
