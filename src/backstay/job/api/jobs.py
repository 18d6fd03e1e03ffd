"""`stay.jobs` of the async API: inspect jobs, enqueue by name, retry, cancel and purge."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from backstay.job import admin, flows
from backstay.job.api.handle import JobHandle
from backstay.job.api.options import CallOptions
from backstay.job.model import Enqueued, LogLine, State
from backstay.job.view import JobInfo, WorkerInfo
from backstay.runtime.core import Core


class Jobs:
    """Inspect, retry, cancel and purge jobs; enqueue a job by the name of its type."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def dead(self) -> DeadLetter:
        """The dead letter: list, retry or purge failed jobs."""
        return DeadLetter(self._core)

    async def enqueue(
        self,
        type: str,  # noqa: A002 - the name used everywhere
        arguments: Mapping[str, Any] | Sequence[Any] = (),
        **options: Unpack[CallOptions],
    ) -> JobHandle[Any]:
        """Enqueue a job by the name of its type: `stay.jobs.enqueue("resize", {"path": "a.png"})`. The arguments of a
        type that this process does not define are passed by name and are not checked. The options of its definition are
        not known here either: pass those that the job needs (`queue=`, `retries=`, …), the others have their defaults.
        """
        return JobHandle(self._core, None, await admin.enqueue_by_name(self._core, type, arguments, options))

    async def handle(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of a job by its id. Raises JobNotFound."""
        job = await flows.fetch_job(self._core, job_id)
        return JobHandle(self._core, None, Enqueued(job.id, job.state), job.chain)

    async def get(self, job_id: str) -> JobInfo:
        """Return all details of a job. Raises JobNotFound."""
        return await admin.get(self._core, job_id)

    async def list(
        self,
        *,
        state: State | None = None,
        queue: str = "",
        type: str = "",  # noqa: A002 - the name used everywhere
        run: str = "",
        before: str = "",
        limit: int = 50,
    ) -> builtins.list[JobInfo]:
        """Return jobs, newest first. For the next page, pass the last id as `before`."""
        return await admin.list_jobs(
            self._core, state=state, queue=queue, type_=type, run=run, before=before, limit=limit
        )

    async def retry(self, job_id: str) -> State:
        """Retry a failed, cancelled, skipped or scheduled job now, with its attempts counted from zero."""
        return await admin.retry(self._core, job_id)

    async def cancel(self, job_id: str, reason: str = "") -> State:
        """Cancel a job. Returns its state: cancelled, running (its handler is asked to stop), or the final state that
        it already had.
        """
        return await flows.cancel(self._core, job_id, reason)

    async def logs(self, job_id: str, after: int = 0) -> builtins.list[LogLine]:
        """Return a job's log lines after the line number `after`."""
        return await flows.logs(self._core, job_id, after)

    async def outputs(self, job_id: str) -> dict[str, str]:
        """Return a job's outputs: the strings that its handler stored by name in `ctx.outputs`."""
        return await flows.outputs(self._core, job_id)

    async def purge(self, state: State = "completed", *, queue: str = "") -> int:
        """Delete the records of all jobs in the given final state, or only those of a queue. Returns how many."""
        return await admin.purge(self._core, state, queue)

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Return the workers with a heartbeat within the last day; their `status` is idle, busy or offline."""
        return await admin.list_workers(self._core)


class DeadLetter:
    """The dead letter: list, retry or purge failed jobs."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(
        self,
        *,
        queue: str = "",
        type: str = "",  # noqa: A002 - the name used everywhere
        before: str = "",
        limit: int = 50,
    ) -> builtins.list[JobInfo]:
        """Return jobs, newest first. For the next page, pass the last id as `before`."""
        return await admin.list_jobs(
            self._core, state="failed", queue=queue, type_=type, run="", before=before, limit=limit
        )

    async def retry(self, job_id: str) -> State:
        """Retry a failed job now, with its attempts counted from zero."""
        return await admin.retry(self._core, job_id)

    async def retry_all(self, *, queue: str = "", type: str = "") -> int:  # noqa: A002 - the name used everywhere
        """Retry all failed jobs, or only those of a queue or type. Returns how many became pending."""
        return await admin.retry_all(self._core, queue, type)

    async def purge(self, *, queue: str = "") -> int:
        """Delete all failed jobs, or only those of a queue. Returns how many."""
        return await admin.purge(self._core, "failed", queue)
