"""The jobs of a workflow as the routes below `/api/workflows` show them: those of a run, with what the definition says
about each. Clients decode them into typed records, so durations are whole numbers, and attempts count from 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.errors import WorkflowNotFound
from backstay.job.run_model import Run
from backstay.server.schemas.workflows import FlowJob, WorkflowJob
from backstay.server.views.run_jobs import run_jobs, unstarted_job
from backstay.server.views.whole_numbers import build_retry_policy, count_from_zero
from backstay.workflow import definition as definitions
from backstay.workflow import flows
from backstay.workflow.definition import JobSpec
from backstay.workflow.definition import Workflow as Definition

if TYPE_CHECKING:
    from backstay.server.app import Server
    from backstay.server.views.run_lookup import RunPlan


async def workflow_jobs(server: Server, run: Run, plan: RunPlan) -> list[WorkflowJob]:
    """List the jobs of a run, in the order of its definition."""
    specs = await _load_specs(server, run)
    # A job that was made by a matrix has a key of its own; `job` is its id in the definition.
    ids = {planned.key: planned.job for planned in plan.doc.jobs}
    return [_view(job, specs.get(ids.get(job.id, ""))) for job in await run_jobs(server, run, plan)]


async def _load_specs(server: Server, run: Run) -> dict[str, JobSpec]:
    """Return the jobs of the definition that the run was started with; none for a workflow in Python, or for a run
    without a stored definition (version 0).
    """
    if not run.version:
        return {}
    try:
        found = await flows.get_definition(server.core, run.workflow, run.version)
    except WorkflowNotFound:
        return {}
    return definitions.unpack(found.doc).jobs


def defined_jobs(workflow: Definition) -> list[WorkflowJob]:
    """List the jobs of a workflow that has not run yet, from its definition."""
    made: list[WorkflowJob] = []
    for id_, job in workflow.jobs.items():
        command = "\n".join(step.run for step in job.steps)
        shown = unstarted_job(id_, job.name or id_, command, list(job.needs), job.labels, job.retries)
        made.append(_view(shown, job))
    return made


def _view(job: FlowJob, spec: JobSpec | None) -> WorkflowJob:
    return WorkflowJob(
        id=job.id,
        name=job.name,
        status=job.status,
        command=job.command,
        duration_secs=None if job.duration_ms is None else job.duration_ms // 1000,
        started_at=job.started_at,
        depends_on=job.depends_on,
        output=job.error if job.status == "failure" and job.output is None else job.output,
        required_labels=job.required_labels,
        max_retries=job.max_retries,
        attempt=count_from_zero(job.attempt),
        metadata=spec.metadata if spec is not None else {},
        ports=list(spec.ports) if spec is not None else [],
        uid=job.uid,
        outputs=job.outputs,
        worker_id=job.worker_id,
        finished_at=job.finished_at,
        duration_ms=job.duration_ms,
        error=job.error,
        truncated=job.truncated,
        retry_policy=build_retry_policy(job.max_retries, spec.backoff) if spec is not None else None,
    )
