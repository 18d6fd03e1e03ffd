"""`stay.jobs` and `stay.queues`, for async and for blocking code."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from backstay.job import admin, flows
from backstay.job.api.handle import BlockingJobHandle, JobHandle
from backstay.job.api.options import CallOptions
from backstay.job.model import Enqueued, LogLine, State
from backstay.job.view import JobInfo, QueueInfo, WorkerInfo
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run as do
from backstay.runtime.validation import Duration


class Jobs:
    """Look at jobs, and set right what went wrong."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def dead(self) -> DeadLetter:
        """Jobs that used up their attempts."""
        return DeadLetter(self._core)

    async def enqueue(
        self,
        type: str,  # noqa: A002 - what it is called everywhere
        arguments: Mapping[str, Any] | Sequence[Any] = (),
        **options: Unpack[CallOptions],
    ) -> JobHandle[Any]:
        """A job by its name, whether this process defines it or not: `stay.jobs.enqueue("resize", {"path": "a.png"})`.
        What is not defined here is not checked either, and takes its arguments by name.
        """
        return JobHandle(self._core, None, await admin.enqueue_by_name(self._core, type, arguments, options))

    async def handle(self, job_id: str) -> JobHandle[Any]:
        """The handle of a job that somebody else enqueued. Raises JobNotFound."""
        job = await flows.look(self._core, job_id)
        return JobHandle(self._core, None, Enqueued(job.id, job.state), job.chain)

    async def get(self, job_id: str) -> JobInfo:
        """All that is known of one job. Raises JobNotFound."""
        return await admin.get(self._core, job_id)

    async def list(
        self,
        *,
        state: State | None = None,
        queue: str = "",
        type: str = "",  # noqa: A002 - the same
        run: str = "",
        before: str = "",
        limit: int = 50,
    ) -> builtins.list[JobInfo]:
        """Newest first. The next page: `before` is the last id of this one."""
        return await admin.list_jobs(
            self._core, state=state, queue=queue, type_=type, run=run, before=before, limit=limit
        )

    async def retry(self, job_id: str) -> State:
        """Again, now, with all its attempts: what failed, was cancelled, was skipped or waits for its time."""
        return await admin.retry(self._core, job_id)

    async def cancel(self, job_id: str, reason: str = "") -> State:
        """End it. Answers its state: cancelled; or running, which is told to stop; or how it had ended already."""
        return await flows.cancel(self._core, job_id, reason)

    async def logs(self, job_id: str, after: int = 0) -> builtins.list[LogLine]:
        """What it logged, behind the line with the number `after`."""
        return await flows.logs(self._core, job_id, after)

    async def outputs(self, job_id: str) -> dict[str, str]:
        """What it put out by name."""
        return await flows.outputs(self._core, job_id)

    async def purge(self, state: State = "completed", *, queue: str = "") -> int:
        """Delete the records of all jobs that ended so. Answers how many."""
        return await admin.purge(self._core, state, queue)

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Those that were heard of within a day; `status`: idle, busy or offline."""
        return await admin.workers(self._core)


class DeadLetter:
    """Jobs that used up their attempts: look, try again, throw away."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(
        self,
        *,
        queue: str = "",
        type: str = "",  # noqa: A002 - the same
        before: str = "",
        limit: int = 50,
    ) -> builtins.list[JobInfo]:
        """Newest first. The next page: `before` is the last id of this one."""
        return await admin.list_jobs(
            self._core, state="failed", queue=queue, type_=type, run="", before=before, limit=limit
        )

    async def retry(self, job_id: str) -> State:
        """One of them again, now, with all its attempts."""
        return await admin.retry(self._core, job_id)

    async def retry_all(self, *, queue: str = "", type: str = "") -> int:  # noqa: A002 - the same
        """All of them, or those of a queue or type. Answers how many."""
        return await admin.retry_all(self._core, queue, type)

    async def purge(self, *, queue: str = "") -> int:
        """Delete all of them, or those of a queue. Answers how many."""
        return await admin.purge(self._core, "failed", queue)


class Queues:
    """Look at queues; pause, resume, limit, drain them."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(self) -> builtins.list[QueueInfo]:
        """All queues and what is in them."""
        return await admin.list_queues(self._core)

    async def get(self, name: str) -> QueueInfo:
        """One queue; one that nobody has used is empty."""
        return await admin.get_queue(self._core, name)

    async def pause(self, name: str) -> None:
        """Hand out nothing from now on; what runs goes on."""
        await admin.pause(self._core, name, paused=True)

    async def resume(self, name: str) -> None:
        """Hand out again."""
        await admin.pause(self._core, name, paused=False)

    async def rate(self, name: str, rate: str | None, *, burst: int | None = None) -> None:
        """How many jobs of a queue may start in a time, over all workers: "100/minute"; None: any number. `burst` of
        them at once (all of them).
        """
        await admin.limit(self._core, name, rate, burst)

    async def drain(self, name: str, timeout: Duration | None = None) -> QueueInfo:
        """Pause it and wait until nothing of it runs. Raises ResultTimeout; it stays paused either way."""
        within = None if timeout is None else validation.seconds(timeout, "timeout", zero=True)
        return await admin.drain(self._core, name, within)


class BlockingJobs:
    """Look at jobs, and set right what went wrong."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def dead(self) -> BlockingDeadLetter:
        """Jobs that used up their attempts."""
        return BlockingDeadLetter(self._core)

    def enqueue(
        self,
        type: str,  # noqa: A002 - what it is called everywhere
        arguments: Mapping[str, Any] | Sequence[Any] = (),
        **options: Unpack[CallOptions],
    ) -> BlockingJobHandle[Any]:
        """A job by its name, whether this process defines it or not: `stay.jobs.enqueue("resize", {"path": "a.png"})`.
        What is not defined here is not checked either, and takes its arguments by name.
        """
        return BlockingJobHandle(self._core, None, do(admin.enqueue_by_name(self._core, type, arguments, options)))

    def handle(self, job_id: str) -> BlockingJobHandle[Any]:
        """The handle of a job that somebody else enqueued. Raises JobNotFound."""
        job = do(flows.look(self._core, job_id))
        return BlockingJobHandle(self._core, None, Enqueued(job.id, job.state), job.chain)

    def get(self, job_id: str) -> JobInfo:
        """All that is known of one job. Raises JobNotFound."""
        return do(admin.get(self._core, job_id))

    def list(
        self,
        *,
        state: State | None = None,
        queue: str = "",
        type: str = "",  # noqa: A002 - the same
        run: str = "",
        before: str = "",
        limit: int = 50,
    ) -> builtins.list[JobInfo]:
        """Newest first. The next page: `before` is the last id of this one."""
        return do(
            admin.list_jobs(self._core, state=state, queue=queue, type_=type, run=run, before=before, limit=limit)
        )

    def retry(self, job_id: str) -> State:
        """Again, now, with all its attempts: what failed, was cancelled, was skipped or waits for its time."""
        return do(admin.retry(self._core, job_id))

    def cancel(self, job_id: str, reason: str = "") -> State:
        """End it. Answers its state: cancelled; or running, which is told to stop; or how it had ended already."""
        return do(flows.cancel(self._core, job_id, reason))

    def logs(self, job_id: str, after: int = 0) -> builtins.list[LogLine]:
        """What it logged, behind the line with the number `after`."""
        return do(flows.logs(self._core, job_id, after))

    def outputs(self, job_id: str) -> dict[str, str]:
        """What it put out by name."""
        return do(flows.outputs(self._core, job_id))

    def purge(self, state: State = "completed", *, queue: str = "") -> int:
        """Delete the records of all jobs that ended so. Answers how many."""
        return do(admin.purge(self._core, state, queue))

    def workers(self) -> builtins.list[WorkerInfo]:
        """Those that were heard of within a day; `status`: idle, busy or offline."""
        return do(admin.workers(self._core))


class BlockingDeadLetter:
    """Jobs that used up their attempts: look, try again, throw away."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(
        self,
        *,
        queue: str = "",
        type: str = "",  # noqa: A002 - the same
        before: str = "",
        limit: int = 50,
    ) -> builtins.list[JobInfo]:
        """Newest first. The next page: `before` is the last id of this one."""
        return do(
            admin.list_jobs(self._core, state="failed", queue=queue, type_=type, run="", before=before, limit=limit)
        )

    def retry(self, job_id: str) -> State:
        """One of them again, now, with all its attempts."""
        return do(admin.retry(self._core, job_id))

    def retry_all(self, *, queue: str = "", type: str = "") -> int:  # noqa: A002 - the same
        """All of them, or those of a queue or type. Answers how many."""
        return do(admin.retry_all(self._core, queue, type))

    def purge(self, *, queue: str = "") -> int:
        """Delete all of them, or those of a queue. Answers how many."""
        return do(admin.purge(self._core, "failed", queue))


class BlockingQueues:
    """Look at queues; pause, resume, limit, drain them."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self) -> builtins.list[QueueInfo]:
        """All queues and what is in them."""
        return do(admin.list_queues(self._core))

    def get(self, name: str) -> QueueInfo:
        """One queue; one that nobody has used is empty."""
        return do(admin.get_queue(self._core, name))

    def pause(self, name: str) -> None:
        """Hand out nothing from now on; what runs goes on."""
        do(admin.pause(self._core, name, paused=True))

    def resume(self, name: str) -> None:
        """Hand out again."""
        do(admin.pause(self._core, name, paused=False))

    def rate(self, name: str, rate: str | None, *, burst: int | None = None) -> None:
        """How many jobs of a queue may start in a time, over all workers: "100/minute"; None: any number. `burst` of
        them at once (all of them).
        """
        do(admin.limit(self._core, name, rate, burst))

    def drain(self, name: str, timeout: Duration | None = None) -> QueueInfo:
        """Pause it and wait until nothing of it runs. Raises ResultTimeout; it stays paused either way."""
        within = None if timeout is None else validation.seconds(timeout, "timeout", zero=True)
        return do(admin.drain(self._core, name, within))
