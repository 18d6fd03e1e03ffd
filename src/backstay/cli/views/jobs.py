"""Format jobs and queues: rows and pages for people, JSON for programs."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from backstay.cli.durations import span
from backstay.cli.output import printable, say, say_table
from backstay.job.model import LogLine
from backstay.job.view import JobInfo, QueueInfo
from backstay.runtime.serialization import to_json_value

COLUMNS = ("id", "type", "queue", "state", "attempt", "age", "what")
RIGHT = ("attempt", "age")
_COUNTS = ("pending", "running", "scheduled", "blocked", "failed", "completed")
QUEUE_COLUMNS = ("queue", "state", *_COUNTS, "waiting", "rate")
QUEUE_RIGHT = (*_COUNTS, "waiting")
#: The most characters of an argument or error in a table; a longer text is cut.
SHORT = 60


def row(job: JobInfo, now: float) -> tuple[str, ...]:
    """Return the cells of one job for `jobs ls`."""
    return (
        job.id,
        printable(job.type),
        printable(job.queue),
        job.state + (" (cancel requested)" if job.cancel_requested and job.state == "running" else ""),
        f"{job.attempt}/{job.retries + 1}",
        span(now - job.enqueued.timestamp()) if job.enqueued else "",
        _what(job, now),
    )


def _what(job: JobInfo, now: float) -> str:
    if job.state == "running":
        share = f"{job.progress:.0%} " if job.progress > 0 else ""
        return printable(f"{share}on {job.worker}")
    if job.state == "scheduled" and job.due is not None:
        left = job.due.timestamp() - now
        return (f"due in {span(left)}" if left > 0 else "due") + (f", {_cause(job)}" if job.error else "")
    if job.waits_for:
        return f"waits for {len(job.waits_for)}"
    if job.error is not None and job.state != "completed":
        return _cause(job)
    return _short(", ".join(f"{name}={_json(value)}" for name, value in (job.args or {}).items()))


def describe_error(job: JobInfo) -> str:
    """Return the kind and message of the job's last error; "" when it has none."""
    if job.error is None:
        return ""
    return f"{job.error.kind}: {job.error.message}" if job.error.message else job.error.kind


def _cause(job: JobInfo) -> str:
    return _short(describe_error(job))


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"


def _json(value: Any) -> str:
    return json.dumps(to_json_value(value), ensure_ascii=False)


def page(job: JobInfo, outputs: dict[str, str], now: float) -> None:
    """Print all fields of one job that have a value, and the traceback of its error."""
    facts = [
        ("id", job.id),
        ("type", job.type),
        ("queue", job.queue),
        ("state", job.state + (", cancel requested" if job.cancel_requested and job.state == "running" else "")),
        ("attempt", f"{job.attempt} of {job.retries + 1}" + (f", {job.snoozes} snoozes" if job.snoozes else "")),
        ("priority", str(job.priority)),
        ("labels", ", ".join(job.labels)),
        ("arguments", _json(job.args) if job.args is not None else "(unreadable)"),
        ("enqueued", _ago(job.enqueued, now)),
        ("due", _ago(job.due, now)),
        ("started", _ago(job.started, now)),
        ("finished", _ago(job.finished, now)),
        ("worker", job.worker),
        ("lease until", _ago(job.lease_until, now)),
        ("progress", f"{job.progress:.0%}" if job.progress > 0 else ""),
        ("chain", job.chain if job.chain != job.id else ""),
        ("followed by", job.followed_by),
        ("waits for", ", ".join(job.waits_for)),
        ("unique", job.unique),
        ("concurrency", job.concurrency),
        ("run", job.run),
        ("result", _json(job.result) if job.state == "completed" else ""),
        ("outputs", _json(outputs) if outputs else ""),
        ("error", describe_error(job)),
    ]
    say_table(("", ""), [(name, printable(value)) for name, value in facts if value])
    if job.error is not None and job.error.trace:
        say("")
        for line in job.error.trace.rstrip().splitlines():
            say(printable(line))


def _ago(at: datetime | None, now: float) -> str:
    if at is None:
        return ""
    away = now - at.timestamp()
    when = f"{span(away)} ago" if away >= 0 else f"in {span(-away)}"
    return f"{at.isoformat(timespec='milliseconds')} ({when})"


def as_json(job: JobInfo) -> dict[str, Any]:
    """Return the job as the object that `--json` prints."""
    return {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "state": job.state,
        "args": to_json_value(job.args),
        "labels": list(job.labels),
        "priority": job.priority,
        "attempt": job.attempt,
        "retries": job.retries,
        "snoozes": job.snoozes,
        "chain": job.chain,
        "run": job.run,
        "worker": job.worker,
        "progress": job.progress,
        "cancel_requested": job.cancel_requested,
        "enqueued": _iso(job.enqueued),
        "due": _iso(job.due),
        "started": _iso(job.started),
        "finished": _iso(job.finished),
        "lease_until": _iso(job.lease_until),
        "result": to_json_value(job.result),
        "error": None
        if job.error is None
        else {
            "kind": job.error.kind,
            "message": job.error.message,
            "trace": job.error.trace,
            "attempt": job.error.attempt,
        },
        "unique": job.unique,
        "concurrency": job.concurrency,
        "waits_for": list(job.waits_for),
        "followed_by": job.followed_by,
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def line_json(line: LogLine) -> dict[str, Any]:
    return {"seq": line.seq, "at_ms": line.at // 1000, "stream": line.stream, "data": line.data}


def queue_row(queue: QueueInfo) -> tuple[str, ...]:
    """Return the cells of one queue for `queues ls`."""
    counts = (queue.pending, queue.running, queue.scheduled, queue.blocked, queue.failed, queue.completed)
    return (
        printable(queue.name),
        "paused" if queue.paused else "open",
        *(str(count) for count in counts),
        span(queue.waiting) if queue.pending else "",
        queue.rate,
    )


def queue_json(queue: QueueInfo) -> dict[str, Any]:
    """Return the queue as the object that `--json` prints."""
    return {
        "name": queue.name,
        "paused": queue.paused,
        "rate": queue.rate,
        "scheduled": queue.scheduled,
        "blocked": queue.blocked,
        "pending": queue.pending,
        "running": queue.running,
        "completed": queue.completed,
        "failed": queue.failed,
        "cancelled": queue.cancelled,
        "skipped": queue.skipped,
        "waiting_seconds": queue.waiting,
    }
