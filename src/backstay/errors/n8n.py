"""Errors of the n8n tools: workflow files, workspaces, patches and the n8n server."""

from __future__ import annotations

from backstay.errors.engine import BackstayError


class N8nError(BackstayError):
    """An error of an n8n workflow file, a workspace or an n8n server."""


class BadWorkflow(N8nError, ValueError):
    """The file is not an n8n workflow. The message states the position and the reason."""

    def __init__(self, why: str, *, source: str = "", line: int = 0, column: int = 0) -> None:
        place = source or "this workflow"
        if line:
            place += f", line {line}, column {column}"
        super().__init__(f"{place}: {why}")
        self.why = why
        self.source = source
        self.line = line
        self.column = column


class WorkspaceError(N8nError):
    """A workspace is incomplete, invalid or in conflict with the change. Nothing was changed."""


class PatchRefused(N8nError):
    """The lock or limit cannot be added to this workflow. Nothing was changed."""


class N8nUnreachable(N8nError):
    """No n8n server responds at the address, or not in time."""


class N8nRefused(N8nError):
    """n8n rejected the request; `.status` is the HTTP status, or 0."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
