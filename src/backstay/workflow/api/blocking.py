"""`stay.workflows`, `stay.runs` and run handles of the blocking API, with the same method names as in the async API."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from typing import Any

from backstay.job.model import LogLine, State
from backstay.job.run_model import RunEvent, RunStatus
from backstay.runtime.core import Core
from backstay.runtime.flows import run as do
from backstay.runtime.validation import Duration
from backstay.workflow import flows
from backstay.workflow.api.handle import BaseRunHandle
from backstay.workflow.api.workflows import Document, page_limit, read_document, validate_status
from backstay.workflow.view import RunInfo, RunJobInfo, WorkflowInfo, run_info, workflow_info


class BlockingWorkflows:
    """Stored workflow definitions, by name and version."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def put(self, document: Document, *, name: str = "") -> WorkflowInfo:
        """Store a workflow from YAML, JSON, plain data or a Path. An unchanged document keeps its version. If the
        document has problems, raises BadDefinition with all of them and stores nothing.
        """
        return workflow_info(do(flows.put(self._core, read_document(document, name))))

    def get(self, name: str, version: int = 0) -> WorkflowInfo:
        """Return one version of a workflow; 0: the newest. Raises WorkflowNotFound."""
        return workflow_info(do(flows.get_definition(self._core, name, version)))

    def list(self, *, after: str = "", limit: int = 100) -> builtins.list[WorkflowInfo]:
        """List the newest version of each workflow, by name. For the next page, pass the last name as `after`."""
        return do(flows.list_workflows(self._core, after, page_limit(limit)))

    def start(
        self, name: str, inputs: Mapping[str, Any] | None = None, *, version: int = 0, trigger: str = "manual"
    ) -> BlockingRunHandle:
        """Start a run by the workflow's name. Raises WorkflowNotFound, BadInput."""
        return BlockingRunHandle(self._core, do(flows.start_by_name(self._core, name, inputs or {}, version, trigger)))


class BlockingRuns:
    """List, read, cancel and retry runs."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def handle(self, run_id: str) -> BlockingRunHandle:
        """Return a handle of an existing run, wherever it was started. Raises RunNotFound."""
        return BlockingRunHandle(self._core, do(flows.get_run(self._core, run_id)))

    def get(self, run_id: str) -> RunInfo:
        """Return the current state of a run. Raises RunNotFound."""
        return run_info(do(flows.get_run(self._core, run_id)))

    def list(
        self, *, workflow: str = "", status: RunStatus | None = None, before: str = "", limit: int = 50
    ) -> builtins.list[RunInfo]:
        """List runs, newest first. For the next page, pass the last id as `before`."""
        return do(flows.list_runs(self._core, workflow, validate_status(status), before, page_limit(limit)))

    def jobs(self, run_id: str) -> builtins.list[RunJobInfo]:
        """Return the jobs of a run, in the order of its definition."""
        return do(flows.list_run_jobs(self._core, run_id))

    def cancel(self, run_id: str, reason: str = "") -> RunStatus:
        """Cancel a run: jobs that have not started are cancelled, running jobs are asked to stop. Returns the run's
        status.
        """
        return do(flows.cancel(self._core, run_id, reason)).status

    def retry(self, run_id: str, key: str) -> State:
        """Retry one job of a run now, with its attempts counted from zero. Raises RunNotFound, JobNotFound,
        RetryRefused.
        """
        return do(flows.retry(self._core, run_id, key))

    def rerun_failed(self, run_id: str) -> RunStatus:
        """Retry all failed and cancelled jobs of a finished run. Returns the run's status."""
        return do(flows.rerun_failed(self._core, run_id)).status

    def events(self, run_id: str, after: int = 0, *, follow: bool = True) -> Iterator[RunEvent]:
        """Iterate over the events of a run after event number `after`, each once and in order, until the run has ended.
        follow=False: only the events so far.
        """
        return blocking_events(self._core, run_id, after, follow=follow)

    def logs(self, run_id: str, key: str, after: int = 0) -> builtins.list[LogLine]:
        """Return the log of a job after line number `after`."""
        return do(flows.read_logs(self._core, run_id, key, after))


class BlockingRunHandle(BaseRunHandle):
    """A handle of a run, with blocking methods."""

    __slots__ = ()

    def wait(self, timeout: Duration | None = None) -> RunStatus:
        """Wait until the run has ended, and return success, failure or cancelled. Raises ResultTimeout after `timeout`
        seconds; the run continues.
        """
        return do(self._wait(timeout))

    def status(self) -> RunStatus:
        """Return queued, running, success, failure or cancelled. Raises RunNotFound."""
        return do(flows.get_run(self._core, self.id, doc=False)).status

    def info(self) -> RunInfo:
        """Return the run's current state. Raises RunNotFound."""
        return run_info(do(flows.get_run(self._core, self.id)))

    def jobs(self) -> list[RunJobInfo]:
        """Return the run's jobs, in the order of the definition."""
        return do(flows.list_run_jobs(self._core, self.id))

    def cancel(self, reason: str = "") -> RunStatus:
        """Cancel the run: jobs that have not started are cancelled, running jobs are asked to stop. Returns the run's
        status.
        """
        return do(flows.cancel(self._core, self.id, reason)).status

    def retry(self, key: str) -> State:
        """Retry one job of the run now, with its attempts counted from zero. Jobs that were skipped because this job
        failed go back to waiting for it. Raises RetryRefused if a job that this job needs did not succeed.
        """
        return do(flows.retry(self._core, self.id, key))

    def rerun_failed(self) -> RunStatus:
        """Retry all failed and cancelled jobs of the run, if it has ended. Returns the run's status."""
        return do(flows.rerun_failed(self._core, self.id)).status

    def events(self, after: int = 0, *, follow: bool = True) -> Iterator[RunEvent]:
        """Iterate over the run's events after event number `after`, each once and in order, until the run has ended.
        follow=False: only the events so far.
        """
        return blocking_events(self._core, self.id, after, follow=follow)

    def logs(self, key: str, after: int = 0) -> list[LogLine]:
        """Return the log of one job of the run after line number `after`."""
        return do(flows.read_logs(self._core, self.id, key, after))


def blocking_events(core: Core, run_id: str, after: int, *, follow: bool) -> Iterator[RunEvent]:
    """Iterate over the events of a run from a thread, which blocks while it waits for the next event."""
    events = flows.stream_events(core, run_id, after, follow=follow)
    try:
        while True:
            try:
                yield do(events.__anext__())
            except StopAsyncIteration:
                return
    finally:
        do(events.aclose())
