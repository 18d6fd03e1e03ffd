"""Format workflows and runs: rows and pages for people, JSON for programs."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from backstay.cli.durations import span
from backstay.cli.output import printable, say, say_table
from backstay.cli.views import jobs as job_views
from backstay.workflow.definition import as_json
from backstay.workflow.view import RunInfo, RunJobInfo, WorkflowInfo

WORKFLOW_COLUMNS = ("workflow", "version", "stored")
RUN_COLUMNS = ("run", "workflow", "status", "jobs", "age", "took", "why")
JOB_COLUMNS = ("job", "state", "attempt", "took", "needs", "what")
#: The most characters of a reason or command in a table; a longer text is cut.
SHORT = 60


def _ago(at: datetime | None, now: float) -> str:
    return f"{span(now - at.timestamp())} ago" if at else ""


def _took(started: datetime | None, finished: datetime | None, now: float) -> str:
    if started is None:
        return ""
    return span((finished.timestamp() if finished else now) - started.timestamp())


def _short(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def workflow_row(info: WorkflowInfo, now: float) -> tuple[str, ...]:
    return printable(info.name), str(info.version), _ago(info.created, now)


def workflow_json(info: WorkflowInfo) -> dict[str, Any]:
    """Return the workflow as the object that `--json` prints."""
    answer: dict[str, Any] = {
        "name": info.name,
        "version": info.version,
        "digest": info.digest,
        "created": _iso(info.created),
    }
    if info.definition is not None:
        answer["source"] = info.definition.source
        answer["definition"] = as_json(info.definition)
    return answer


def workflow_page(info: WorkflowInfo) -> None:
    """Print one workflow: its fields, its inputs, and a table of its jobs."""
    definition = info.definition
    if definition is None:
        return
    facts = [
        ("workflow", info.name),
        ("version", str(info.version)),
        ("stored", _iso(info.created) or ""),
        ("on", ", ".join(definition.on)),
        ("timeout", span(definition.timeout) if definition.timeout else ""),
        ("defined in", definition.function),
    ]
    for name, one in definition.inputs.items():
        default = "" if one.default is None else f" = {json.dumps(one.default)}"
        facts.append(("input", f"{name}{default}{' (required)' if one.required else ''} {one.description}".rstrip()))
    say_table(("", ""), [(name, printable(value)) for name, value in facts if value])
    if definition.jobs:
        say("")
        rows = [
            (
                printable(id_) + (" ×" if job.matrix else ""),
                printable(", ".join(job.needs)),
                _short(job.condition),
                printable(", ".join(job.labels)),
                _short(job.steps[0].run if len(job.steps) == 1 else f"{len(job.steps)} steps"),
            )
            for id_, job in definition.jobs.items()
        ]
        say_table(("job", "needs", "if", "labels", "what"), rows)


def run_row(run: RunInfo, now: float) -> tuple[str, ...]:
    """Return the cells of one run for `runs ls`."""
    return (
        run.id,
        printable(run.workflow),
        _status(run),
        _counts(run),
        span(now - run.created.timestamp()) if run.created else "",
        _took(run.started, run.finished, now),
        _short(run.reason),
    )


def _status(run: RunInfo) -> str:
    return run.status + (" (cancel requested)" if run.cancel_requested and not run.is_finished else "")


def _counts(run: RunInfo) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(run.counts.items()) if count)


def run_page(run: RunInfo, jobs: list[RunJobInfo], now: float) -> None:
    """Print one run: its fields, and a table of its jobs."""
    facts = [
        ("run", run.id),
        ("workflow", f"{run.workflow} version {run.version}" if run.version else run.workflow),
        ("status", _status(run)),
        ("why", run.reason),
        ("started by", run.trigger),
        ("inputs", json.dumps(run.inputs, default=str, ensure_ascii=False) if run.inputs else ""),
        ("created", f"{_iso(run.created)} ({_ago(run.created, now)})" if run.created else ""),
        ("took", _took(run.started, run.finished, now)),
        ("ends at", _iso(run.deadline) or ""),
    ]
    say_table(("", ""), [(name, printable(value)) for name, value in facts if value])
    say("")
    say_table(JOB_COLUMNS, (job_row(job, now) for job in jobs), right=("attempt", "took"))


def job_row(job: RunJobInfo, now: float) -> tuple[str, ...]:
    info = job.info
    return (
        printable(job.key),
        job.state + (" (soft)" if job.soft and job.state == "failed" else ""),
        f"{info.attempt}/{info.retries + 1}" if info.attempt and not job.is_internal else "",
        _took(info.started, info.finished, now),
        _short(", ".join(job.needs)),
        _what(job),
    )


def _what(job: RunJobInfo) -> str:
    info = job.info
    if job.state in ("failed", "cancelled", "skipped") and info.error is not None:
        return _short(job_views.describe_error(info))
    if job.state == "running":
        return printable(f"on {info.worker}")
    return _short(job.command or (f"if {job.condition}" if job.condition else ""))


def run_json(run: RunInfo) -> dict[str, Any]:
    """Return the run as the object that `--json` prints."""
    return {
        "id": run.id,
        "workflow": run.workflow,
        "version": run.version,
        "status": run.status,
        "inputs": run.inputs,
        "trigger": run.trigger,
        "created": _iso(run.created),
        "started": _iso(run.started),
        "finished": _iso(run.finished),
        "deadline": _iso(run.deadline),
        "cancel_requested": run.cancel_requested,
        "reason": run.reason,
        "counts": run.counts,
        "events": run.events,
    }


def job_json(job: RunJobInfo) -> dict[str, Any]:
    """Return a job of a run as the object that `--json` prints."""
    return {
        "key": job.key,
        "name": job.name,
        "state": job.state,
        "needs": list(job.needs),
        "if": job.condition,
        "command": job.command,
        "soft": job.soft,
        "matrix": job.matrix,
        "job": job_views.as_json(job.info),
    }
