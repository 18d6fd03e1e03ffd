"""Handle of a run: wait for its end, read its jobs, cancel it, retry failed jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from backstay.errors import ConfigError
from backstay.job.model import LogLine, State
from backstay.job.run_model import Run, RunEvent, RunStatus
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration
from backstay.workflow import flows
from backstay.workflow.view import RunInfo, RunJobInfo, run_info


class BaseRunHandle:
    """A handle of a run: base of the async and the blocking class."""

    __slots__ = ("_core", "_outputs", "id", "version", "workflow")

    def __init__(self, core: Core, run: Run) -> None:
        self._core = core
        self.id = run.id
        self.workflow = run.workflow
        self.version = run.version
        self._outputs: dict[str, Any] | None = None

    @property
    def outputs(self) -> dict[str, Any]:
        """The result of each completed job by key, available after `wait()`: its return value, or a command's outputs
        by name. The jobs of a map also appear as a list under the map's key.
        """
        if self._outputs is None:
            raise ConfigError("the outputs of a run are available after it has ended: call wait() first")
        return self._outputs

    async def _wait(self, timeout: Duration | None) -> RunStatus:
        within = None if timeout is None else validation.to_seconds(timeout, "timeout", zero=True)
        run = await flows.wait_finished(self._core, self.id, within)
        self._outputs = await flows.collect_outputs(self._core, run)
        return run.status

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.workflow} {self.id}>"


class RunHandle(BaseRunHandle):
    """A handle of a run, with async methods."""

    __slots__ = ()

    async def wait(self, timeout: Duration | None = None) -> RunStatus:
        """Wait until the run has ended, and return success, failure or cancelled. Raises ResultTimeout after `timeout`
        seconds; the run continues.
        """
        return await self._wait(timeout)

    async def status(self) -> RunStatus:
        """Return queued, running, success, failure or cancelled. Raises RunNotFound."""
        return (await flows.get_run(self._core, self.id, doc=False)).status

    async def info(self) -> RunInfo:
        """Return the run's current state. Raises RunNotFound."""
        return run_info(await flows.get_run(self._core, self.id))

    async def jobs(self) -> list[RunJobInfo]:
        """Return the run's jobs, in the order of the definition."""
        return await flows.list_run_jobs(self._core, self.id)

    async def cancel(self, reason: str = "") -> RunStatus:
        """Cancel the run: idle jobs are cancelled, running jobs are asked to stop. Returns the run's status."""
        return (await flows.cancel(self._core, self.id, reason)).status

    async def retry(self, key: str) -> State:
        """Retry one job of the run now, with its attempts counted from zero. Jobs that were skipped because of it wait
        for it again. Raises RetryRefused if a job that it needs did not succeed.
        """
        return await flows.retry(self._core, self.id, key)

    async def rerun_failed(self) -> RunStatus:
        """Retry all failed and cancelled jobs of the run, if it has ended. Returns the run's status."""
        return (await flows.rerun_failed(self._core, self.id)).status

    def events(self, after: int = 0, *, follow: bool = True) -> AsyncIterator[RunEvent]:
        """Iterate over the run's events after event number `after`, each once and in order, until the run has ended.
        follow=False: only the events so far.
        """
        return flows.stream_events(self._core, self.id, after, follow=follow)

    async def logs(self, key: str, after: int = 0) -> list[LogLine]:
        """Return the log of one job of the run after line number `after`."""
        return await flows.read_logs(self._core, self.id, key, after)
