"""A run that was started: wait for its end, look at its jobs, cancel it, try again what failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from backstay.errors import ConfigError
from backstay.job.model import LogLine, State
from backstay.job.run_model import Run, RunEvent, RunStatus
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run as do
from backstay.runtime.validation import Duration
from backstay.workflow import flows
from backstay.workflow.view import RunInfo, RunJobInfo, run_info


class BaseRunHandle:
    """What both APIs share."""

    __slots__ = ("_core", "_outputs", "id", "version", "workflow")

    def __init__(self, core: Core, run: Run) -> None:
        self._core = core
        self.id = run.id
        self.workflow = run.workflow
        self.version = run.version
        self._outputs: dict[str, Any] | None = None

    @property
    def outputs(self) -> dict[str, Any]:
        """What each job came to, by key, once `wait()` has answered: what it returned, or put out by name. Jobs that
        did not complete are not there; those of a map are a list under its name, too.
        """
        if self._outputs is None:
            raise ConfigError("the outputs of a run are known once it has ended: wait() for it first")
        return self._outputs

    async def _wait(self, timeout: Duration | None) -> RunStatus:
        within = None if timeout is None else validation.seconds(timeout, "timeout", zero=True)
        run = await flows.ended(self._core, self.id, within)
        self._outputs = await flows.outputs(self._core, run)
        return run.status

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.workflow} {self.id}>"


class RunHandle(BaseRunHandle):
    """A run of an async Backstay."""

    __slots__ = ()

    async def wait(self, timeout: Duration | None = None) -> RunStatus:
        """How it ended, as soon as it has: success, failure or cancelled. Raises ResultTimeout when that takes longer
        than `timeout` seconds; the run goes on then.
        """
        return await self._wait(timeout)

    async def status(self) -> RunStatus:
        """queued, running, success, failure or cancelled. Raises RunNotFound."""
        return (await flows.look(self._core, self.id, doc=False)).status

    async def info(self) -> RunInfo:
        """All that is known of it. Raises RunNotFound."""
        return run_info(await flows.look(self._core, self.id))

    async def jobs(self) -> list[RunJobInfo]:
        """Its jobs by name, in the order in which they were written."""
        return await flows.jobs(self._core, self.id)

    async def cancel(self, reason: str = "") -> RunStatus:
        """End it: what does not run is cancelled, what runs is told to stop. Answers its status now."""
        return (await flows.cancel(self._core, self.id, reason)).status

    async def retry(self, key: str) -> State:
        """One of its jobs again, now, with all its attempts; those that were skipped because of it wait for it. Raises
        RetryRefused where what it needs did not succeed itself.
        """
        return await flows.retry(self._core, self.id, key)

    async def rerun_failed(self) -> RunStatus:
        """All jobs that failed or were cancelled again, once it has ended. Answers its status now."""
        return (await flows.rerun_failed(self._core, self.id)).status

    def events(self, after: int = 0, *, follow: bool = True) -> AsyncIterator[RunEvent]:
        """What happens in it, each event once and in order, behind the one with the number `after`; until it has ended.
        follow=False: what has happened so far.
        """
        return flows.events(self._core, self.id, after, follow=follow)

    async def logs(self, key: str, after: int = 0) -> list[LogLine]:
        """What one of its jobs logged, behind the line with the number `after`."""
        return await flows.logs(self._core, self.id, key, after)


class BlockingRunHandle(BaseRunHandle):
    """A run of a blocking Backstay."""

    __slots__ = ()

    def wait(self, timeout: Duration | None = None) -> RunStatus:
        """How it ended, as soon as it has: success, failure or cancelled. Raises ResultTimeout when that takes longer
        than `timeout` seconds; the run goes on then.
        """
        return do(self._wait(timeout))

    def status(self) -> RunStatus:
        """queued, running, success, failure or cancelled. Raises RunNotFound."""
        return do(flows.look(self._core, self.id, doc=False)).status

    def info(self) -> RunInfo:
        """All that is known of it. Raises RunNotFound."""
        return run_info(do(flows.look(self._core, self.id)))

    def jobs(self) -> list[RunJobInfo]:
        """Its jobs by name, in the order in which they were written."""
        return do(flows.jobs(self._core, self.id))

    def cancel(self, reason: str = "") -> RunStatus:
        """End it: what does not run is cancelled, what runs is told to stop. Answers its status now."""
        return do(flows.cancel(self._core, self.id, reason)).status

    def retry(self, key: str) -> State:
        """One of its jobs again, now, with all its attempts; those that were skipped because of it wait for it. Raises
        RetryRefused where what it needs did not succeed itself.
        """
        return do(flows.retry(self._core, self.id, key))

    def rerun_failed(self) -> RunStatus:
        """All jobs that failed or were cancelled again, once it has ended. Answers its status now."""
        return do(flows.rerun_failed(self._core, self.id)).status

    def events(self, after: int = 0, *, follow: bool = True) -> Iterator[RunEvent]:
        """What happens in it, each event once and in order, behind the one with the number `after`; until it has ended.
        follow=False: what has happened so far.
        """
        return blocking_events(self._core, self.id, after, follow=follow)

    def logs(self, key: str, after: int = 0) -> list[LogLine]:
        """What one of its jobs logged, behind the line with the number `after`."""
        return do(flows.logs(self._core, self.id, key, after))


def blocking_events(core: Core, run_id: str, after: int, *, follow: bool) -> Iterator[RunEvent]:
    """The same events for a thread."""
    events = flows.events(core, run_id, after, follow=follow)
    try:
        while True:
            try:
                yield do(events.__anext__())
            except StopAsyncIteration:
                return
    finally:
        do(events.aclose())
