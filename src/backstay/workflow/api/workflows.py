"""`stay.workflows` and `stay.runs` of the async API."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, get_args

from backstay.errors import ConfigError
from backstay.job.model import LogLine, State
from backstay.job.run_model import RunEvent, RunStatus
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.workflow import flows
from backstay.workflow.api.handle import RunHandle
from backstay.workflow.document.yaml import read
from backstay.workflow.view import RunInfo, RunJobInfo, WorkflowInfo, run_info, workflow_info

#: A workflow as text, bytes, plain data, or the path of its file.
Document = str | bytes | Mapping[str, Any] | Path
#: Limit of entries per page of a list.
LARGEST_PAGE = 1000


def read_document(document: Document, name: str) -> Any:
    if isinstance(document, Path):
        try:
            raw = document.read_bytes()
        except OSError as error:
            raise ConfigError(f"{document} cannot be read: {error.strerror or error}") from error
        return read(raw, name=name or document.stem, source=str(document))
    return read(document, name=name)


def page_limit(limit: int) -> int:
    return min(validation.check_count(limit, "limit"), LARGEST_PAGE)


def validate_status(status: RunStatus | None) -> RunStatus | None:
    if status is not None and status not in get_args(RunStatus):
        raise ConfigError(f"status must be one of {', '.join(get_args(RunStatus))}; got {status!r}")
    return status


class Workflows:
    """Stored workflow definitions, by name and version."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    async def put(self, document: Document, *, name: str = "") -> WorkflowInfo:
        """Store a workflow from YAML, JSON, plain data or a Path. An unchanged document keeps its version. If the
        document has problems, raises BadDefinition with all of them and stores nothing.
        """
        return workflow_info(await flows.put(self._core, read_document(document, name)))

    async def get(self, name: str, version: int = 0) -> WorkflowInfo:
        """Return one version of a workflow; 0: the newest. Raises WorkflowNotFound."""
        return workflow_info(await flows.get_definition(self._core, name, version))

    async def list(self, *, after: str = "", limit: int = 100) -> builtins.list[WorkflowInfo]:
        """List the newest version of each workflow, by name. For the next page, pass the last name as `after`."""
        return await flows.list_workflows(self._core, after, page_limit(limit))

    async def start(
        self, name: str, inputs: Mapping[str, Any] | None = None, *, version: int = 0, trigger: str = "manual"
    ) -> RunHandle:
        """Start a run by the workflow's name. Raises WorkflowNotFound, BadInput."""
        return RunHandle(self._core, await flows.start_by_name(self._core, name, inputs or {}, version, trigger))


class Runs:
    """List, read, cancel and retry runs."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    async def handle(self, run_id: str) -> RunHandle:
        """Return a handle of an existing run, wherever it was started. Raises RunNotFound."""
        return RunHandle(self._core, await flows.get_run(self._core, run_id))

    async def get(self, run_id: str) -> RunInfo:
        """Return the current state of a run. Raises RunNotFound."""
        return run_info(await flows.get_run(self._core, run_id))

    async def list(
        self, *, workflow: str = "", status: RunStatus | None = None, before: str = "", limit: int = 50
    ) -> builtins.list[RunInfo]:
        """List runs, newest first. For the next page, pass the last id as `before`."""
        return await flows.list_runs(self._core, workflow, validate_status(status), before, page_limit(limit))

    async def jobs(self, run_id: str) -> builtins.list[RunJobInfo]:
        """Return the jobs of a run, in the order of its definition."""
        return await flows.list_run_jobs(self._core, run_id)

    async def cancel(self, run_id: str, reason: str = "") -> RunStatus:
        """Cancel a run: running jobs are asked to stop, all other unfinished jobs are cancelled. Returns the run's
        current status.
        """
        return (await flows.cancel(self._core, run_id, reason)).status

    async def retry(self, run_id: str, key: str) -> State:
        """Retry one job of a run now, with its attempts counted from zero. Raises RunNotFound, JobNotFound,
        RetryRefused.
        """
        return await flows.retry(self._core, run_id, key)

    async def rerun_failed(self, run_id: str) -> RunStatus:
        """Retry all failed and cancelled jobs of a finished run. Returns the run's status."""
        return (await flows.rerun_failed(self._core, run_id)).status

    def events(self, run_id: str, after: int = 0, *, follow: bool = True) -> AsyncIterator[RunEvent]:
        """Iterate over the events of a run after event number `after`, each once and in order, until the run has ended.
        follow=False: only the events so far.
        """
        return flows.stream_events(self._core, run_id, after, follow=follow)

    async def logs(self, run_id: str, key: str, after: int = 0) -> builtins.list[LogLine]:
        """Return the log lines of a job after line number `after`."""
        return await flows.read_logs(self._core, run_id, key, after)
