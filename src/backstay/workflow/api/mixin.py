"""The workflow methods of `Backstay`, async and blocking. Each method imports its modules at first use, since most
programs have no workflows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, overload

from backstay.runtime.core import Core
from backstay.runtime.services import Service
from backstay.runtime.validation import Duration

if TYPE_CHECKING:
    from backstay.workflow.api.blocking import BlockingRuns, BlockingWorkflows
    from backstay.workflow.api.decorator import (
        BaseWorkflowType,
        BlockingWorkflowDecorator,
        BlockingWorkflowType,
        WorkflowDecorator,
        WorkflowType,
    )
    from backstay.workflow.api.workflows import Runs, Workflows
    from backstay.workflow.builder import Flow

P = ParamSpec("P")

#: The workflows that the program defines, by name.
WORKFLOWS: Service[dict[str, BaseWorkflowType[...]]] = Service("workflow registry", lambda _: {}, survives_fork=True)


class WorkflowsMixin:
    """Workflow methods of the async `Backstay`."""

    _core: Core

    @property
    def workflows(self) -> Workflows:
        """Store, list, read and start workflows by name."""
        from backstay.workflow.api.workflows import Workflows

        return Workflows(self._core)

    @property
    def runs(self) -> Runs:
        """List, read, cancel and retry runs."""
        from backstay.workflow.api.workflows import Runs

        return Runs(self._core)

    @overload
    def workflow(self, function: Callable[Concatenate[Flow, P], Any], /) -> WorkflowType[P]: ...
    @overload
    def workflow(
        self, /, *, name: str = "", timeout: Duration | None = None, keep: Duration = ...
    ) -> WorkflowDecorator: ...
    def workflow(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function a workflow. The function receives a `Flow` and adds jobs with `flow.add` and `flow.map`. It
        is called each time a run is started, and must not be async.

        name: the workflow's name (default: the function's). timeout: seconds a run may take; then it is cancelled.
        keep: seconds the run's record is kept after its end (default: a week).
        """
        from backstay.workflow.api.decorator import WorkflowType

        def decorate(function: Callable[..., Any]) -> WorkflowType[...]:
            return WorkflowType[...](self._core, function, **options)

        return decorate if function is None else decorate(function)


class BlockingWorkflowsMixin:
    """Workflow methods of the blocking `Backstay`."""

    _core: Core

    @property
    def workflows(self) -> BlockingWorkflows:
        """Store, list, read and start workflows by name."""
        from backstay.workflow.api.blocking import BlockingWorkflows

        return BlockingWorkflows(self._core)

    @property
    def runs(self) -> BlockingRuns:
        """List, read, cancel and retry runs."""
        from backstay.workflow.api.blocking import BlockingRuns

        return BlockingRuns(self._core)

    @overload
    def workflow(self, function: Callable[Concatenate[Flow, P], Any], /) -> BlockingWorkflowType[P]: ...
    @overload
    def workflow(
        self, /, *, name: str = "", timeout: Duration | None = None, keep: Duration = ...
    ) -> BlockingWorkflowDecorator: ...
    def workflow(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function a workflow. The function receives a `Flow` and adds jobs with `flow.add` and `flow.map`. It
        is called each time a run is started. The options are those of `WorkflowsMixin.workflow`.
        """
        from backstay.workflow.api.decorator import BlockingWorkflowType

        def decorate(function: Callable[..., Any]) -> BlockingWorkflowType[...]:
            return BlockingWorkflowType[...](self._core, function, **options)

        return decorate if function is None else decorate(function)
