"""`stay.jobs` and `stay.queues` of the blocking API."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from backstay.job import admin, flows
from backstay.job.api.handle import BlockingJobHandle
from backstay.job.api.options import CallOptions
from backstay.job.model import Enqueued, LogLine, State
from backstay.job.view import JobInfo, QueueInfo, WorkerInfo
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run as do
from backstay.runtime.validation import Duration


class BlockingJobs:
    """Inspect, retry, cancel and purge jobs; enqueue a job by the name of its type."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def dead(self) -> BlockingDeadLetter:
        """The dead letter: list, retry or purge failed jobs."""
        return BlockingDeadLetter(self._core)

    def enqueue(
        self,
        type: str,  # noqa: A002 - the name used everywhere
        arguments: Mapping[str, Any] | Sequence[Any] = (),
        **options: Unpack[CallOptions],
    ) -> BlockingJobHandle[Any]:
        """Enqueue a job by the name of its type: `stay.jobs.enqueue("resize", {"path": "a.png"})`. The arguments of a
        type that this process does not define are passed by name and are not checked. The options of its definition are
        not known here either: pass those that the job needs (`queue=`, `retries=`, …), the others have their defaults.
        """
        return BlockingJobHandle(self._core, None, do(admin.enqueue_by_name(self._core, type, arguments, options)))

    def handle(self, job_id: str) -> BlockingJobHandle[Any]:
        """Return the handle of a job by its id. Raises JobNotFound."""
        job = do(flows.fetch_job(self._core, job_id))
        return BlockingJobHandle(self._core, None, Enqueued(job.id, job.state), job.chain)

    def get(self, job_id: str) -> JobInfo:
        """Return all details of a job. Raises JobNotFound."""
        return do(admin.get(self._core, job_id))

    def list(
        self,
        *,
        state: State | None = None,
        queue: str = "",
        type: str = "",  # noqa: A002 - the name used everywhere
        run: str = "",
        before: str = "",
        limit: int = 50,
    ) -> builtins.list[JobInfo]:
        """Return jobs, newest first. For the next page, pass the id of the last job as `before`."""
        return do(
            admin.list_jobs(self._core, state=state, queue=queue, type_=type, run=run, before=before, limit=limit)
        )

    def retry(self, job_id: str) -> State:
        """Retry a failed, cancelled, skipped or scheduled job now, with its attempts counted from zero."""
        return do(admin.retry(self._core, job_id))

    def cancel(self, job_id: str, reason: str = "") -> State:
        """Cancel a job. Returns its state: cancelled, running (its handler is asked to stop), or the final state that
        it already had.
        """
        return do(flows.cancel(self._core, job_id, reason))

    def logs(self, job_id: str, after: int = 0) -> builtins.list[LogLine]:
        """Return a job's log lines after the line number `after`."""
        return do(flows.logs(self._core, job_id, after))

    def outputs(self, job_id: str) -> dict[str, str]:
        """Return a job's outputs: the strings that its handler stored by name in `ctx.outputs`."""
        return do(flows.outputs(self._core, job_id))

    def purge(self, state: State = "completed", *, queue: str = "") -> int:
        """Delete the records of all jobs in the given final state, or only those of a queue. Returns how many."""
        return do(admin.purge(self._core, state, queue))

    def workers(self) -> builtins.list[WorkerInfo]:
        """Return the workers with a heartbeat within the last day; their `status` is idle, busy or offline."""
        return do(admin.list_workers(self._core))


class BlockingDeadLetter:
    """The dead letter: list, retry or purge failed jobs."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(
        self,
        *,
        queue: str = "",
        type: str = "",  # noqa: A002 - the name used everywhere
        before: str = "",
        limit: int = 50,
    ) -> builtins.list[JobInfo]:
        """Return jobs, newest first. For the next page, pass the id of the last job as `before`."""
        return do(
            admin.list_jobs(self._core, state="failed", queue=queue, type_=type, run="", before=before, limit=limit)
        )

    def retry(self, job_id: str) -> State:
        """Retry a failed job now, with its attempts counted from zero."""
        return do(admin.retry(self._core, job_id))

    def retry_all(self, *, queue: str = "", type: str = "") -> int:  # noqa: A002 - the name used everywhere
        """Retry all failed jobs, or only those of a queue or type. Returns how many became pending."""
        return do(admin.retry_all(self._core, queue, type))

    def purge(self, *, queue: str = "") -> int:
        """Delete all failed jobs, or only those of a queue. Returns how many."""
        return do(admin.purge(self._core, "failed", queue))


class BlockingQueues:
    """Inspect, pause, resume, rate-limit and drain queues."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self) -> builtins.list[QueueInfo]:
        """Return all queues, each with the number of its jobs by state."""
        return do(admin.list_queues(self._core))

    def get(self, name: str) -> QueueInfo:
        """Return one queue; for an unknown name, a queue without jobs."""
        return do(admin.get_queue(self._core, name))

    def pause(self, name: str) -> None:
        """Pause a queue: workers claim none of its jobs; running jobs continue."""
        do(admin.pause(self._core, name, paused=True))

    def resume(self, name: str) -> None:
        """Resume a paused queue."""
        do(admin.pause(self._core, name, paused=False))

    def rate(self, name: str, rate: str | None, *, burst: int | None = None) -> None:
        """Limit how many jobs of a queue start in a period, over all workers: "100/minute", or None for no limit.
        `burst`: how many of them may start at once (default: all 100).
        """
        do(admin.limit_queue(self._core, name, rate, burst))

    def drain(self, name: str, timeout: Duration | None = None) -> QueueInfo:
        """Pause a queue and wait until none of its jobs run. Raises ResultTimeout after `timeout` seconds. The queue
        stays paused in both cases.
        """
        within = None if timeout is None else validation.to_seconds(timeout, "timeout", zero=True)
        return do(admin.drain(self._core, name, within))
