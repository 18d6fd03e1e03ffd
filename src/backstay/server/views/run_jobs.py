"""The jobs of a run as the API shows them: each planned job with its state, then jobs added at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from backstay.job import metadata
from backstay.job.model import FINAL, Job
from backstay.job.reserved import is_internal
from backstay.job.run_model import Run
from backstay.job.view import plain
from backstay.server.routes.jobs import millis, seconds_of
from backstay.server.schemas.jobs import STATUSES
from backstay.server.schemas.workflows import FlowJob
from backstay.workflow.definition import Workflow as Definition
from backstay.workflow.planning.needs import as_strings, decode_outputs
from backstay.workflow.run import RunJob
from backstay.workflow.view import last_of_chains

if TYPE_CHECKING:
    from backstay.server.app import Server


async def run_jobs(server: Server, run: Run) -> list[FlowJob]:
    """List the jobs in the order of the definition; jobs that the run added itself come last."""
    plan = server.run_lookup.cache_plan(run) if run.doc else await server.run_lookup.load_plan(run.id)
    last = last_of_chains(await server.run_lookup.list_jobs(run.id))
    now = server.core.engine.now()
    made = [_planned(planned, last.pop(planned.id, None), now) for planned in plan.doc.jobs]
    return made + [_added(job, plan.names, now) for job in last.values() if metadata.unpack(job.meta).key]


def _planned(planned: RunJob, job: Job | None, now: int) -> FlowJob:
    name, needs = planned.name or planned.key, list(planned.needs)
    if job is None:
        return not_enqueued(planned.key, name, planned.command, needs, planned.labels, planned.retries)
    if is_internal(job.type):
        made = not_enqueued(planned.key, name, planned.command, needs, planned.labels, planned.retries)
        return _undecided(made, job)
    return _job(planned.key, name, planned.command, needs, job, now)


def _undecided(made: FlowJob, job: Job) -> FlowJob:
    """Show a planned job whose decision job is in its place: queued, or the decision's outcome once that is final."""
    if job.state not in FINAL:
        return made
    made.status, made.uid, made.finished_at = STATUSES[job.state], job.id, millis(job.finished)
    made.output, made.outputs = _output(job.result), as_strings(decode_outputs(job.result))
    made.error = job.error.message if job.error is not None else ""
    return made


def _added(job: Job, names: dict[str, str], now: int) -> FlowJob:
    key = metadata.unpack(job.meta).key
    return _job(key, key, "", [names.get(chain, chain) for chain in job.after], job, now)


def _job(key: str, name: str, command: str, needs: list[str], job: Job, now: int) -> FlowJob:
    return FlowJob(
        id=key,
        name=name,
        status=STATUSES[job.state],
        command=command,
        duration_secs=seconds_of(job, now),
        started_at=millis(job.started),
        depends_on=needs,
        output=_output(job.result),
        uid=job.id,
        attempt=job.attempt,
        required_labels=list(job.labels),
        max_retries=job.retries,
        outputs=as_strings(decode_outputs(job.result)),
        worker_id=job.worker,
        finished_at=millis(job.finished),
        error=job.error.message if job.error is not None else "",
    )


def _output(raw: bytes | None) -> str | None:
    """Return a result as text: a string as it is, anything else as JSON."""
    value = plain(raw) if raw else None
    if value is None or isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, msgspec.EncodeError):
        return repr(value)


def not_enqueued(key: str, name: str, command: str, needs: list[str], labels: tuple[str, ...], retries: int) -> FlowJob:
    """Show a planned job that has not been enqueued yet."""
    return FlowJob(
        id=key,
        name=name,
        status="queued",
        command=command,
        duration_secs=None,
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


def defined_jobs(workflow: Definition) -> list[FlowJob]:
    """List the jobs of a definition that has not run yet."""
    return [
        not_enqueued(
            id_,
            job.name or id_,
            "\n".join(step.run for step in job.steps),
            list(job.needs),
            job.labels,
            job.retries,
        )
        for id_, job in workflow.jobs.items()
    ]
