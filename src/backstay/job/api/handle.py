"""A job that was enqueued: ask how it is, wait for its result, end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from backstay.job import flows
from backstay.job.model import Enqueued, Job, LogLine, State
from backstay.job.view import JobInfo, job_info
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.serialization import ANYTHING
from backstay.runtime.validation import Duration

if TYPE_CHECKING:
    from backstay.job.api.definition import BaseJobType

R = TypeVar("R")


class BaseHandle(Generic[R]):
    """What both APIs share."""

    __slots__ = ("_core", "_job", "chain_id", "deduplicated", "id")

    def __init__(self, core: Core, job: BaseJobType[..., R] | None, enqueued: Enqueued, chain_id: str = "") -> None:
        self._core = core
        #: Reads the result; None: as plain data, or as the job type that this process knows by that name.
        self._job = job
        self.id = enqueued.id
        #: The first job of its chain: what `after=` waits for.
        self.chain_id = chain_id or enqueued.id
        #: True: another job had the unique key already; this is that one.
        self.deduplicated = enqueued.deduplicated

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def _result(self, timeout: Duration | None, *, chain: bool) -> Any:
        within = None if timeout is None else validation.seconds(timeout, "timeout", zero=True)
        job = await flows.ended(self._core, self.chain_id if chain else self.id, chain=chain, timeout=within)
        return self._decoded(job, flows.completed(job))

    def _decoded(self, job: Job, raw: bytes) -> Any:
        known: Any = self._job
        if known is None or known.name != job.type:  # a chain went on with another type, or it was found by its id
            known = self._core.jobs.get(job.type)
        if known is not None:
            return cast("BaseJobType[..., Any]", known).decode_result(raw)
        return ANYTHING.decode(raw) if raw else None


class JobHandle(BaseHandle[R]):
    """A job of an async Backstay that was enqueued."""

    __slots__ = ()

    async def result(self, timeout: Duration | None = None) -> R:
        """What the job returned, as soon as it has. Raises JobFailed, JobCancelled or JobSkipped when it ended
        otherwise, ResultTimeout when that takes longer than `timeout` seconds; the job goes on then.
        """
        return cast("R", await self._result(timeout, chain=False))

    @property
    def chain(self) -> Chain:
        """The job and those that carry it on (`ctx.continue_with`)."""
        return Chain(self)

    async def status(self) -> State:
        """scheduled, blocked, pending, running, completed, failed, cancelled or skipped. Raises JobNotFound."""
        return (await flows.look(self._core, self.id)).state

    async def info(self) -> JobInfo:
        """All that is known of it. Raises JobNotFound."""
        return job_info(await flows.look(self._core, self.id))

    async def progress(self) -> float:
        """0 to 1, as the job itself said."""
        return (await flows.look(self._core, self.id)).progress

    async def cancel(self, reason: str = "") -> State:
        """End it. Answers its state: cancelled; or running, which is told to stop; or how it had ended already."""
        return await flows.cancel(self._core, self.id, reason)

    async def logs(self, after: int = 0) -> list[LogLine]:
        """What it logged, behind the line with the number `after`."""
        return await flows.logs(self._core, self.id, after)

    async def outputs(self) -> dict[str, str]:
        """What it put out by name."""
        return await flows.outputs(self._core, self.id)


class Chain:
    """A job and those that carry it on."""

    __slots__ = ("_handle",)

    def __init__(self, handle: JobHandle[Any]) -> None:
        self._handle = handle

    @property
    def id(self) -> str:
        return self._handle.chain_id

    async def result(self, timeout: Duration | None = None) -> Any:
        """What the last job of the chain returned, as soon as the chain has ended. Raises as `JobHandle.result`."""
        return await self._handle._result(timeout, chain=True)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - its other half


class BlockingJobHandle(BaseHandle[R]):
    """A job of a blocking Backstay that was enqueued."""

    __slots__ = ()

    def result(self, timeout: Duration | None = None) -> R:
        """What the job returned, as soon as it has. Raises JobFailed, JobCancelled or JobSkipped when it ended
        otherwise, ResultTimeout when that takes longer than `timeout` seconds; the job goes on then.
        """
        return cast("R", run(self._result(timeout, chain=False)))

    @property
    def chain(self) -> BlockingChain:
        """The job and those that carry it on (`ctx.continue_with`)."""
        return BlockingChain(self)

    def status(self) -> State:
        """scheduled, blocked, pending, running, completed, failed, cancelled or skipped. Raises JobNotFound."""
        return run(flows.look(self._core, self.id)).state

    def info(self) -> JobInfo:
        """All that is known of it. Raises JobNotFound."""
        return job_info(run(flows.look(self._core, self.id)))

    def progress(self) -> float:
        """0 to 1, as the job itself said."""
        return run(flows.look(self._core, self.id)).progress

    def cancel(self, reason: str = "") -> State:
        """End it. Answers its state: cancelled; or running, which is told to stop; or how it had ended already."""
        return run(flows.cancel(self._core, self.id, reason))

    def logs(self, after: int = 0) -> list[LogLine]:
        """What it logged, behind the line with the number `after`."""
        return run(flows.logs(self._core, self.id, after))

    def outputs(self) -> dict[str, str]:
        """What it put out by name."""
        return run(flows.outputs(self._core, self.id))


class BlockingChain:
    """A job and those that carry it on."""

    __slots__ = ("_handle",)

    def __init__(self, handle: BlockingJobHandle[Any]) -> None:
        self._handle = handle

    @property
    def id(self) -> str:
        return self._handle.chain_id

    def result(self, timeout: Duration | None = None) -> Any:
        """What the last job of the chain returned, as soon as the chain has ended. Raises as the handle's."""
        return run(self._handle._result(timeout, chain=True))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - its other half
