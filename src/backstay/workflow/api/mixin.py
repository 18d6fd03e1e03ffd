"""What both Backstays offer for workflows by the same names. Loaded at first use: most programs have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, overload

from backstay.runtime.core import Core
from backstay.runtime.validation import Duration

if TYPE_CHECKING:
    from backstay.workflow.api.decorator import BlockingDecorator, BlockingWorkflowType, Decorator, WorkflowType
    from backstay.workflow.api.workflows import BlockingRuns, BlockingWorkflows, Runs, Workflows
    from backstay.workflow.builder import Flow

P = ParamSpec("P")


class WorkflowDoor:
    """The doors of an async Backstay to its workflows."""

    _core: Core

    @property
    def workflows(self) -> Workflows:
        """Store, look at and start workflows by name."""
        from backstay.workflow.api.workflows import Workflows

        return Workflows(self._core)

    @property
    def runs(self) -> Runs:
        """Look at runs; cancel, try again."""
        from backstay.workflow.api.workflows import Runs

        return Runs(self._core)

    @overload
    def workflow(self, function: Callable[Concatenate[Flow, P], Any], /) -> WorkflowType[P]: ...
    @overload
    def workflow(self, /, *, name: str = "", timeout: Duration | None = None, keep: Duration = ...) -> Decorator: ...
    def workflow(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function a workflow: it is handed a flow, and puts a run together with `flow.add` and `flow.map`
        whenever one is started. Not async.

        name: what it is called (the function's name). timeout: seconds a run may take; then it is cancelled. keep:
        seconds its record stays after its end (a week).
        """
        from backstay.workflow.api.decorator import WorkflowType

        def decorate(function: Callable[..., Any]) -> WorkflowType[...]:
            return WorkflowType[...](self._core, function, **options)

        return decorate if function is None else decorate(function)


class BlockingWorkflowDoor:
    """The doors of a blocking Backstay to its workflows."""

    _core: Core

    @property
    def workflows(self) -> BlockingWorkflows:
        """Store, look at and start workflows by name."""
        from backstay.workflow.api.workflows import BlockingWorkflows

        return BlockingWorkflows(self._core)

    @property
    def runs(self) -> BlockingRuns:
        """Look at runs; cancel, try again."""
        from backstay.workflow.api.workflows import BlockingRuns

        return BlockingRuns(self._core)

    @overload
    def workflow(self, function: Callable[Concatenate[Flow, P], Any], /) -> BlockingWorkflowType[P]: ...
    @overload
    def workflow(
        self, /, *, name: str = "", timeout: Duration | None = None, keep: Duration = ...
    ) -> BlockingDecorator: ...
    def workflow(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function a workflow: it is handed a flow, and puts a run together with `flow.add` and `flow.map`
        whenever one is started. The options are those of the async API.
        """
        from backstay.workflow.api.decorator import BlockingWorkflowType

        def decorate(function: Callable[..., Any]) -> BlockingWorkflowType[...]:
            return BlockingWorkflowType[...](self._core, function, **options)

        return decorate if function is None else decorate(function)
