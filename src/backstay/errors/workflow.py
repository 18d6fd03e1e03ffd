"""Errors of workflow definitions and runs."""

from __future__ import annotations

from dataclasses import dataclass

from backstay.errors.engine import BackstayError


class WorkflowError(BackstayError):
    """An error of a workflow or of one of its runs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a definition, with its position. Lines and columns count from 1; 0 means no position."""

    message: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.message}" if self.line else self.message

    def within(self, source: str) -> str:
        """Format the problem with its file name, in a form that editors turn into a link: `file:line:column:
        message`.
        """
        return f"{source}{':' if self.line else ': '}{self}" if source else str(self)


class BadDefinition(WorkflowError, ValueError):
    """The workflow is invalid. `.problems` lists every problem found; nothing was stored."""

    def __init__(self, problems: tuple[Problem, ...], *, source: str = "") -> None:
        lines = "".join(f"\n  {one.within(source)}" for one in problems)
        many = f"{len(problems)} problems" if len(problems) != 1 else "a problem"
        super().__init__(f"the workflow has {many}; nothing was stored:{lines}")
        self.problems = problems
        self.source = source


class BadExpression(WorkflowError, ValueError):
    """An `if` or a `${{ … }}` cannot be parsed. `.position` counts characters from 0."""

    def __init__(self, message: str, *, text: str, position: int) -> None:
        super().__init__(f"{message}, at character {position + 1} of {text!r}")
        self.message = message
        self.text = text
        self.position = position


class BadInput(WorkflowError, ValueError):
    """The inputs do not match the workflow's declaration. No run was started."""

    def __init__(self, *, workflow: str, reason: str) -> None:
        super().__init__(f"workflow {workflow!r} cannot start with these inputs: {reason}")
        self.workflow = workflow
        self.reason = reason


class RunTooLarge(WorkflowError, ValueError):
    """A run, a job or a text of it exceeds its size limit, for example after its expressions are filled in. Nothing was
    started.
    """

    def __init__(self, *, what: str, limit: int, unit: str = "characters") -> None:
        super().__init__(f"{what} would have more than {limit} {unit}, which is the limit")
        self.what = what
        self.limit = limit


class WorkflowNotFound(WorkflowError, LookupError):
    """There is no workflow of this name, or no such version of it."""

    def __init__(self, *, workflow: str, version: int = 0) -> None:
        which = f"version {version} of workflow" if version else "workflow"
        super().__init__(f"there is no {which} {workflow!r}; `backstay workflows ls` lists the stored workflows")
        self.workflow = workflow
        self.version = version


class RunNotFound(WorkflowError, LookupError):
    """There is no such run: it never existed, or its record has expired (`keep=`)."""

    def __init__(self, *, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}; its record may have expired (keep=)")
        self.run_id = run_id
