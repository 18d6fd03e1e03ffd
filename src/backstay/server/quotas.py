"""Quotas of what one caller or one job may store over HTTP. A principal with the role admin has no quota of queues and
of times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from backstay.engine.base import steady
from backstay.job.flows import send
from backstay.server.http.problem import Refusal

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.runtime.core import Core
    from backstay.server.http.request import Request
    from backstay.server.settings import ServerSettings

#: Seconds for which the lengths of queues are cached.
LENGTHS_AGE = 1.0
#: All queues together may have this many times as many waiting jobs as one queue.
ALL_QUEUES = 10


def has_quota(request: Request) -> bool:
    return "admin" not in request.principal.roles


def check_seconds(request: Request, seconds: float | None, most: float, what: str) -> None:
    """Raise Refusal (422) when a caller with a quota asks for a longer time than it may have."""
    if seconds is not None and seconds > most and has_quota(request):
        raise Refusal(
            422, f"{what} may be at most {most:g} s for this token; a token with the role admin may have more"
        )


class QueueQuota:
    """Bounds the number of jobs that wait in a queue, for jobs that are added over HTTP. The lengths are cached, so the
    bound may be exceeded by what is added within a second at other servers.
    """

    def __init__(self, core: Core, store: Store, limit: int) -> None:
        self._core = core
        self._store = store
        self._limit = limit
        self._lengths: dict[str, int] = {}
        self._read_at = -LENGTHS_AGE

    async def check(self, request: Request, queue: str) -> None:
        """Count a job that is about to be added. Raises Refusal (429)."""
        if not self._limit or not has_quota(request):
            return
        if steady() - self._read_at >= LENGTHS_AGE:
            found = await send(self._core, self._store.queues())
            self._lengths = {one.name: one.scheduled + one.blocked + one.pending for one in found}
            self._read_at = steady()
        length = self._lengths.get(queue, 0)
        if length >= self._limit or sum(self._lengths.values()) >= ALL_QUEUES * self._limit:
            raise Refusal(
                429,
                f"{length} jobs wait in the queue {queue[:100]!r}, and {self._limit} is the limit (all queues together:"
                f" {ALL_QUEUES * self._limit}); try again later",
                headers={"retry-after": "5"},
            )
        self._lengths[queue] = length + 1


class ArtifactQuota:
    """Bounds the number and the bytes of the artifacts of one job."""

    def __init__(self, core: Core, store: Store, settings: ServerSettings) -> None:
        self._core = core
        self._store = store
        self._most = settings.max_artifacts
        self._bytes = settings.max_artifact_bytes
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def storing(self, job: str, name: str, size: int) -> AsyncGenerator[None, None]:
        """Hold the lock of a job while one of its artifacts is stored: two uploads at once must not both take the last
        bytes. Raises Refusal (413).
        """
        lock = self._locks.setdefault(job, asyncio.Lock())
        async with lock:
            known = await send(self._core, self._store.list_artifacts(job))
            others = [one for one in known if one.name != name]
            if len(others) >= self._most:
                raise Refusal(413, f"a job may have at most {self._most} artifacts", limit=self._most)
            if size + sum(one.size for one in others) > self._bytes:
                raise Refusal(
                    413, f"the artifacts of a job may have at most {self._bytes} bytes together", limit=self._bytes
                )
            yield
