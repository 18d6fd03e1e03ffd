"""The jobs of a run as one picture: what was planned, and what became of it."""

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
from backstay.workflow.planning.needs import as_strings, outputs_of
from backstay.workflow.run import RunJob
from backstay.workflow.view import last_of_chains

if TYPE_CHECKING:
    from backstay.server.app import Server


async def flow_jobs(server: Server, run: Run) -> list[FlowJob]:
    """In the order of the definition; what the run has added itself comes last."""
    play = server.runbook.learn(run) if run.doc else await server.runbook.play(run.id)
    last = last_of_chains(await server.runbook.jobs(run.id))
    now = server.core.engine.now()
    made = [_planned(planned, last.pop(planned.id, None), now) for planned in play.doc.jobs]
    return made + [_added(job, play.names, now) for job in last.values() if metadata.unpack(job.meta).key]


def _planned(planned: RunJob, job: Job | None, now: int) -> FlowJob:
    name, needs = planned.name or planned.key, list(planned.needs)
    if job is None:
        return waiting(planned.key, name, planned.command, needs, planned.labels, planned.retries)
    if is_internal(job.type):
        made = waiting(planned.key, name, planned.command, needs, planned.labels, planned.retries)
        return _undecided(made, job)
    return _job(planned.key, name, planned.command, needs, job, now)


def _undecided(made: FlowJob, job: Job) -> FlowJob:
    """What is known of a job while one of Backstay's own stands in its place: nothing, or how that has ended."""
    if job.state not in FINAL:
        return made
    made.status, made.uid, made.finished_at = STATUSES[job.state], job.id, millis(job.finished)
    made.output, made.outputs = _output(job.result), as_strings(outputs_of(job.result))
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
        outputs=as_strings(outputs_of(job.result)),
        worker_id=job.worker,
        finished_at=millis(job.finished),
        error=job.error.message if job.error is not None else "",
    )


def _output(raw: bytes | None) -> str | None:
    """A result as text: what JSON says of it."""
    value = plain(raw) if raw else None
    if value is None or isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, msgspec.EncodeError):
        return repr(value)


def waiting(key: str, name: str, command: str, needs: list[str], labels: tuple[str, ...], retries: int) -> FlowJob:
    """A job that has not been made yet."""
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
    """The jobs of a definition that has not run yet."""
    return [
        waiting(
            id_,
            job.name or id_,
            "\n".join(step.run for step in job.steps),
            list(job.needs),
            job.labels,
            job.retries,
        )
        for id_, job in workflow.jobs.items()
    ]
