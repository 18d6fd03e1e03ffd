"""The jobs of a run as the API shows them: each planned job with its state, then the jobs added at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from backstay.job import metadata
from backstay.job.model import FINAL, Job
from backstay.job.reserved import is_internal
from backstay.job.run_model import Run
from backstay.job.view import decode_plain
from backstay.server.routes.jobs import duration_ms, millis
from backstay.server.schemas.jobs import STATUSES
from backstay.server.schemas.workflows import FlowJob
from backstay.server.views.pages import LEFT_OUT
from backstay.workflow.planning.needs import as_strings, decode_outputs
from backstay.workflow.run import RunJob
from backstay.workflow.view import last_of_chains

if TYPE_CHECKING:
    from backstay.server.app import Server
    from backstay.server.views.run_lookup import RunPlan


async def run_jobs(server: Server, run: Run, plan: RunPlan) -> list[FlowJob]:
    """List the jobs of a run in the order of its definition; jobs that were added at run time come last."""
    last = last_of_chains(await server.run_lookup.list_jobs(run.id))
    now = server.core.engine.now()
    made = [_planned_job(planned, last.pop(planned.id, None), now) for planned in plan.doc.jobs]
    return made + [_added_job(job, plan.names, now) for job in last.values() if metadata.unpack(job.meta).key]


def _planned_job(planned: RunJob, job: Job | None, now: int) -> FlowJob:
    name, needs = planned.name or planned.key, list(planned.needs)
    if job is None:
        return unstarted_job(planned.key, name, planned.command, needs, planned.labels, planned.retries)
    if is_internal(job.type):
        made = unstarted_job(planned.key, name, planned.command, needs, planned.labels, planned.retries)
        return _undecided_job(made, job)
    return _job(planned.key, name, planned.command, needs, job, now)


def _undecided_job(made: FlowJob, job: Job) -> FlowJob:
    """Fill in the view of a planned job (a job of the workflow's definition) while the last job of its chain is an
    internal job. The internal job evaluates the planned job's `if` (decide), creates the jobs of a map (map) or
    collects their results (gather). The view says "queued" until the internal job has ended, and then shows its
    outcome.
    """
    if job.state not in FINAL:
        return made
    made.status, made.uid, made.finished_at = STATUSES[job.state], job.id, millis(job.finished)
    made.output, made.outputs = _output_text(job.result), as_strings(decode_outputs(job.result))
    made.truncated = job.result == LEFT_OUT
    made.error = job.error.message if job.error is not None else ""
    return made


def _added_job(job: Job, names: dict[str, str], now: int) -> FlowJob:
    key = metadata.unpack(job.meta).key
    return _job(key, key, "", [names.get(chain, chain) for chain in job.after], job, now)


def _job(key: str, name: str, command: str, needs: list[str], job: Job, now: int) -> FlowJob:
    return FlowJob(
        id=key,
        name=name,
        status=STATUSES[job.state],
        command=command,
        duration_ms=duration_ms(job.started, job.finished, now),
        started_at=millis(job.started),
        depends_on=needs,
        output=_output_text(job.result),
        uid=job.id,
        attempt=job.attempt,
        required_labels=list(job.labels),
        max_retries=job.retries,
        outputs=as_strings(decode_outputs(job.result)),
        worker_id=job.worker,
        finished_at=millis(job.finished),
        error=job.error.message if job.error is not None else "",
        truncated=job.result == LEFT_OUT,
    )


def _output_text(raw: bytes | None) -> str | None:
    """Decode a job's result and return it as text: a string unchanged, other values as JSON. None if there is no
    result, or an empty mapping, as for a command without outputs.
    """
    value = decode_plain(raw) if raw else None
    if value is None or isinstance(value, str):
        return value
    if value == {}:
        return None
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, msgspec.EncodeError):
        return repr(value)


def unstarted_job(
    key: str, name: str, command: str, needs: list[str], labels: tuple[str, ...], retries: int
) -> FlowJob:
    """Build the view of a planned job that has not started: it is queued and has no times, outputs or worker."""
    return FlowJob(
        id=key,
        name=name,
        status="queued",
        command=command,
        duration_ms=None,
        started_at=None,
        depends_on=needs,
        output=None,
        uid="",
        attempt=0,
        required_labels=list(labels),
        max_retries=retries,
        outputs={},
        worker_id="",
        finished_at=None,
        error="",
    )
