"""Job handles: query an enqueued job, wait for its result, cancel it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from backstay.job import flows
from backstay.job.api.registry import JOB_TYPES
from backstay.job.model import Enqueued, Job, LogLine, State
from backstay.job.view import JobInfo, job_info
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.serialization import PLAIN_CODEC
from backstay.runtime.validation import Duration

if TYPE_CHECKING:
    from backstay.job.api.definition import BaseJobType

R = TypeVar("R")


class BaseHandle(Generic[R]):
    """The part of job handles that the async and the blocking API share."""

    __slots__ = ("_core", "_job", "chain_id", "deduplicated", "id")

    def __init__(self, core: Core, job: BaseJobType[..., R] | None, enqueued: Enqueued, chain_id: str = "") -> None:
        self._core = core
        #: The job type, which decodes the result. None: the type registered under the job's type name decodes it; if
        #: there is none, the result is plain data (dicts, lists, strings, numbers).
        self._job = job
        self.id = enqueued.id
        #: The id of the job's chain, which is the id of the chain's first job. A job that is enqueued with `after=` and
        #: this handle waits for the whole chain.
        self.chain_id = chain_id or enqueued.id
        #: True: an existing job has the same unique key, and this is its handle.
        self.deduplicated = enqueued.deduplicated

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def _result(self, timeout: Duration | None, *, chain: bool) -> Any:
        within = None if timeout is None else validation.to_seconds(timeout, "timeout", zero=True)
        job = await flows.wait_finished(self._core, self.chain_id if chain else self.id, chain=chain, timeout=within)
        return self._decode_result(job, flows.result_or_raise(job))

    def _decode_result(self, job: Job, raw: bytes) -> Any:
        known = self._job
        # The chain may have continued with a job of another type, or the handle was made from an id.
        if known is None or known.name != job.type:
            known = self._core.services.get(JOB_TYPES).get(job.type)
        if known is not None:
            return known.decode_result(raw)
        return PLAIN_CODEC.decode(raw) if raw else None


class JobHandle(BaseHandle[R]):
    """The handle of an enqueued job in the async API."""

    __slots__ = ()

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the job and return its result. Raises JobFailed, JobCancelled or JobSkipped if it did not complete,
        ResultTimeout if it takes longer than `timeout` seconds; the job itself continues.
        """
        return cast("R", await self._result(timeout, chain=False))

    @property
    def chain(self) -> Chain:
        """The chain: this job and the jobs with which handlers continue it (`ctx.continue_with`)."""
        return Chain(self)

    async def status(self) -> State:
        """Return the job's state: scheduled, blocked, pending, running, completed, failed, cancelled or skipped. Raises
        JobNotFound.
        """
        return (await flows.fetch_job(self._core, self.id)).state

    async def info(self) -> JobInfo:
        """Return all details of the job. Raises JobNotFound."""
        return job_info(await flows.fetch_job(self._core, self.id))

    async def progress(self) -> float:
        """Return the job's progress, 0 to 1, as reported by the handler."""
        return (await flows.fetch_job(self._core, self.id)).progress

    async def cancel(self, reason: str = "") -> State:
        """Cancel the job. Returns its state: cancelled, running (its handler is asked to stop), or the final state that
        it already had.
        """
        return await flows.cancel(self._core, self.id, reason)

    async def logs(self, after: int = 0) -> list[LogLine]:
        """Return the job's log lines after line number `after`."""
        return await flows.logs(self._core, self.id, after)

    async def outputs(self) -> dict[str, str]:
        """Return the job's outputs: the strings that its handler stored by name in `ctx.outputs`."""
        return await flows.outputs(self._core, self.id)


class Chain:
    """A chain: a job and the jobs with which handlers continue it (`ctx.continue_with`)."""

    __slots__ = ("_handle",)

    def __init__(self, handle: JobHandle[Any]) -> None:
        self._handle = handle

    @property
    def id(self) -> str:
        return self._handle.chain_id

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the chain to end and return the result of its last job. Raises as `JobHandle.result`."""
        return await self._handle._result(timeout, chain=True)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - its other half


class BlockingJobHandle(BaseHandle[R]):
    """The handle of an enqueued job in the blocking API."""

    __slots__ = ()

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the job and return its result. Raises JobFailed, JobCancelled or JobSkipped if it did not complete,
        ResultTimeout if it takes longer than `timeout` seconds; the job itself continues.
        """
        return cast("R", run(self._result(timeout, chain=False)))

    @property
    def chain(self) -> BlockingChain:
        """The chain: this job and the jobs with which handlers continue it (`ctx.continue_with`)."""
        return BlockingChain(self)

    def status(self) -> State:
        """Return the job's state: scheduled, blocked, pending, running, completed, failed, cancelled or skipped. Raises
        JobNotFound.
        """
        return run(flows.fetch_job(self._core, self.id)).state

    def info(self) -> JobInfo:
        """Return all details of the job. Raises JobNotFound."""
        return job_info(run(flows.fetch_job(self._core, self.id)))

    def progress(self) -> float:
        """Return the job's progress, 0 to 1, as reported by the handler."""
        return run(flows.fetch_job(self._core, self.id)).progress

    def cancel(self, reason: str = "") -> State:
        """Cancel the job. Returns its state: cancelled, running (its handler is asked to stop), or the final state that
        it already had.
        """
        return run(flows.cancel(self._core, self.id, reason))

    def logs(self, after: int = 0) -> list[LogLine]:
        """Return the job's log lines after line number `after`."""
        return run(flows.logs(self._core, self.id, after))

    def outputs(self) -> dict[str, str]:
        """Return the job's outputs: the strings that its handler stored by name in `ctx.outputs`."""
        return run(flows.outputs(self._core, self.id))


class BlockingChain:
    """A chain: a job and the jobs with which handlers continue it (`ctx.continue_with`)."""

    __slots__ = ("_handle",)

    def __init__(self, handle: BlockingJobHandle[Any]) -> None:
        self._handle = handle

    @property
    def id(self) -> str:
        return self._handle.chain_id

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the chain to end and return the result of its last job. Raises as `BlockingJobHandle.result`."""
        return run(self._handle._result(timeout, chain=True))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - its other half
