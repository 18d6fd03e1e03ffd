"""`stay.workflows` and `stay.runs`, for async and for blocking code."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from backstay.errors import ConfigError
from backstay.job.model import LogLine, State
from backstay.job.run_model import RunEvent, RunStatus
from backstay.runtime import validation as inputs
from backstay.runtime.core import Core
from backstay.runtime.flows import run as do
from backstay.workflow import flows
from backstay.workflow.api.handle import BlockingRunHandle, RunHandle, blocking_events
from backstay.workflow.document.yaml import read
from backstay.workflow.view import RunInfo, RunJobInfo, WorkflowInfo, run_info, workflow_info

#: A workflow as text, as bytes, as plain data, or where it lies.
Document = str | bytes | Mapping[str, Any] | Path
#: Things that one page of a list has at most.
LARGEST_PAGE = 1000


def _read(document: Document, name: str) -> Any:
    if isinstance(document, Path):
        try:
            raw = document.read_bytes()
        except OSError as error:
            raise ConfigError(f"{document} cannot be read: {error.strerror or error}") from error
        return read(raw, name=name or document.stem, source=str(document))
    return read(document, name=name)


def _limit(limit: int) -> int:
    return min(inputs.count(limit, "limit"), LARGEST_PAGE)


def _status(status: RunStatus | None) -> RunStatus | None:
    if status is not None and status not in get_args(RunStatus):
        raise ConfigError(f"status is one of {', '.join(get_args(RunStatus))}; got {status!r}")
    return status


class Workflows:
    """Definitions that are stored, by name and in versions."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    async def put(self, document: Document, *, name: str = "") -> WorkflowInfo:
        """Store a workflow: YAML or JSON, plain data, or a Path. The same one again is the same version. Raises
        BadDefinition with every problem; nothing is stored then.
        """
        return workflow_info(await flows.put(self._core, _read(document, name)))

    async def get(self, name: str, version: int = 0) -> WorkflowInfo:
        """The newest version, or one of them. Raises WorkflowNotFound."""
        return workflow_info(await flows.definition_of(self._core, name, version))

    async def list(self, *, after: str = "", limit: int = 100) -> builtins.list[WorkflowInfo]:
        """The newest version of each, by name. The next page: `after` is the last name of this one."""
        return await flows.list_workflows(self._core, after, _limit(limit))

    async def start(
        self, name: str, inputs: Mapping[str, Any] | None = None, *, version: int = 0, trigger: str = "manual"
    ) -> RunHandle:
        """Start a run by the workflow's name. Raises WorkflowNotFound, BadInput."""
        return RunHandle(self._core, await flows.start_by_name(self._core, name, inputs or {}, version, trigger))


class Runs:
    """Runs: look at them, cancel, try again."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    async def handle(self, run_id: str) -> RunHandle:
        """The handle of a run that somebody else started. Raises RunNotFound."""
        return RunHandle(self._core, await flows.look(self._core, run_id))

    async def get(self, run_id: str) -> RunInfo:
        """All that is known of one run. Raises RunNotFound."""
        return run_info(await flows.look(self._core, run_id))

    async def list(
        self, *, workflow: str = "", status: RunStatus | None = None, before: str = "", limit: int = 50
    ) -> builtins.list[RunInfo]:
        """Newest first. The next page: `before` is the last id of this one."""
        return await flows.list_runs(self._core, workflow, _status(status), before, _limit(limit))

    async def jobs(self, run_id: str) -> builtins.list[RunJobInfo]:
        """The jobs of a run by name, in the order in which they were written."""
        return await flows.jobs(self._core, run_id)

    async def cancel(self, run_id: str, reason: str = "") -> RunStatus:
        """End it: what does not run is cancelled, what runs is told to stop. Answers its status now."""
        return (await flows.cancel(self._core, run_id, reason)).status

    async def retry(self, run_id: str, key: str) -> State:
        """One job of a run again, now, with all its attempts. Raises RunNotFound, JobNotFound."""
        return await flows.retry(self._core, run_id, key)

    async def rerun_failed(self, run_id: str) -> RunStatus:
        """All jobs that failed or were cancelled again, once the run has ended. Answers its status now."""
        return (await flows.rerun_failed(self._core, run_id)).status

    def events(self, run_id: str, after: int = 0, *, follow: bool = True) -> AsyncIterator[RunEvent]:
        """What happens in a run, each event once and in order, behind the one with the number `after`; until it has
        ended. follow=False: what has happened so far.
        """
        return flows.events(self._core, run_id, after, follow=follow)

    async def logs(self, run_id: str, key: str, after: int = 0) -> builtins.list[LogLine]:
        """What a job of a run logged, behind the line with the number `after`."""
        return await flows.logs(self._core, run_id, key, after)


class BlockingWorkflows:
    """Definitions that are stored, by name and in versions."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def put(self, document: Document, *, name: str = "") -> WorkflowInfo:
        """Store a workflow: YAML or JSON, plain data, or a Path. The same one again is the same version. Raises
        BadDefinition with every problem; nothing is stored then.
        """
        return workflow_info(do(flows.put(self._core, _read(document, name))))

    def get(self, name: str, version: int = 0) -> WorkflowInfo:
        """The newest version, or one of them. Raises WorkflowNotFound."""
        return workflow_info(do(flows.definition_of(self._core, name, version)))

    def list(self, *, after: str = "", limit: int = 100) -> builtins.list[WorkflowInfo]:
        """The newest version of each, by name. The next page: `after` is the last name of this one."""
        return do(flows.list_workflows(self._core, after, _limit(limit)))

    def start(
        self, name: str, inputs: Mapping[str, Any] | None = None, *, version: int = 0, trigger: str = "manual"
    ) -> BlockingRunHandle:
        """Start a run by the workflow's name. Raises WorkflowNotFound, BadInput."""
        return BlockingRunHandle(self._core, do(flows.start_by_name(self._core, name, inputs or {}, version, trigger)))


class BlockingRuns:
    """Runs: look at them, cancel, try again."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def handle(self, run_id: str) -> BlockingRunHandle:
        """The handle of a run that somebody else started. Raises RunNotFound."""
        return BlockingRunHandle(self._core, do(flows.look(self._core, run_id)))

    def get(self, run_id: str) -> RunInfo:
        """All that is known of one run. Raises RunNotFound."""
        return run_info(do(flows.look(self._core, run_id)))

    def list(
        self, *, workflow: str = "", status: RunStatus | None = None, before: str = "", limit: int = 50
    ) -> builtins.list[RunInfo]:
        """Newest first. The next page: `before` is the last id of this one."""
        return do(flows.list_runs(self._core, workflow, _status(status), before, _limit(limit)))

    def jobs(self, run_id: str) -> builtins.list[RunJobInfo]:
        """The jobs of a run by name, in the order in which they were written."""
        return do(flows.jobs(self._core, run_id))

    def cancel(self, run_id: str, reason: str = "") -> RunStatus:
        """End it: what does not run is cancelled, what runs is told to stop. Answers its status now."""
        return do(flows.cancel(self._core, run_id, reason)).status

    def retry(self, run_id: str, key: str) -> State:
        """One job of a run again, now, with all its attempts. Raises RunNotFound, JobNotFound."""
        return do(flows.retry(self._core, run_id, key))

    def rerun_failed(self, run_id: str) -> RunStatus:
        """All jobs that failed or were cancelled again, once the run has ended. Answers its status now."""
        return do(flows.rerun_failed(self._core, run_id)).status

    def events(self, run_id: str, after: int = 0, *, follow: bool = True) -> Iterator[RunEvent]:
        """What happens in a run, each event once and in order, behind the one with the number `after`; until it has
        ended. follow=False: what has happened so far.
        """
        return blocking_events(self._core, run_id, after, follow=follow)

    def logs(self, run_id: str, key: str, after: int = 0) -> builtins.list[LogLine]:
        """What a job of a run logged, behind the line with the number `after`."""
        return do(flows.logs(self._core, run_id, key, after))
