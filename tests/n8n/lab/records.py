"""Records of executions that the lab returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run of one node. `outputs[0]` are the items of its first output, in n8n's format."""

    node: str
    index: int
    started: float
    seconds: float
    status: str
    error: dict[str, Any] | None
    outputs: list[list[dict[str, Any]]]
    source: list[dict[str, Any]]

    @property
    def items(self) -> list[dict[str, Any]]:
        """Return the JSON of the items of all outputs."""
        return [item["json"] for output in self.outputs for item in output or ()]


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution. Times are seconds since 1970, by n8n's clock."""

    id: str
    workflow_id: str
    workflow_name: str
    mode: str
    #: success, error, canceled, waiting; "" while it is still running (its caller was stopped)
    status: str
    error: dict[str, Any] | None
    last_node: str
    #: output of the last node, in n8n's item format: json, binary, pairedItem
    outputs: list[list[dict[str, Any]]]
    started: float
    finished: float
    #: the execution that called this one as a sub-workflow
    parent: str
    runs: dict[str, list[NodeRun]]
    #: whether n8n saves this failed execution, so that it can be retried
    saved: bool
    #: the first execution, then all executions it started
    all: list[Execution] = field(default_factory=list, repr=False)

    @property
    def items(self) -> list[dict[str, Any]]:
        """Return the JSON of the output items."""
        return [item["json"] for item in self.outputs[0] or ()] if self.outputs else []

    @property
    def message(self) -> str:
        """Return the error message; "" on success."""
        return str(self.error["message"]) if self.error else ""

    @property
    def seconds(self) -> float:
        return self.finished - self.started

    def of(self, workflow: str) -> list[Execution]:
        """Return the executions of one workflow (id or name), by start time."""
        return [one for one in self.all if workflow in (one.workflow_id, one.workflow_name)]

    def order(self) -> list[NodeRun]:
        """Return all node runs in order of execution."""
        return sorted((run for runs in self.runs.values() for run in runs), key=lambda run: run.index)


def read(records: list[dict[str, Any]]) -> Execution:
    made = [_execution(record) for record in records]
    first = made[0]
    first.all.extend(made)
    return first


def _execution(record: dict[str, Any]) -> Execution:
    started = record["startedAt"] / 1000
    return Execution(
        id=record["id"],
        workflow_id=record["workflow"].get("id") or "",
        workflow_name=record["workflow"].get("name") or "",
        mode=record["mode"],
        status=record.get("status") or "",
        error=record.get("error"),
        last_node=record.get("lastNode") or "",
        outputs=record.get("outputs") or [],
        started=started,
        finished=record.get("finishedAt", record["startedAt"]) / 1000,
        parent=record.get("parent") or "",
        runs={name: list(_runs(name, runs)) for name, runs in (record.get("runData") or {}).items()},
        saved=bool(record.get("saved")),
    )


def _runs(name: str, runs: list[dict[str, Any]]) -> Iterator[NodeRun]:
    for run in runs:
        yield NodeRun(
            node=name,
            index=run["executionIndex"],
            started=run["startTime"] / 1000,
            seconds=run["executionTime"] / 1000,
            status=run.get("executionStatus") or "",
            error=run.get("error"),
            outputs=(run.get("data") or {}).get("main") or [],
            source=run.get("source") or [],
        )
