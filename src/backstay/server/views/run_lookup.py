"""Finds runs and jobs by the names that HTTP requests use: a workflow, one of its runs (by default the latest), and a
job's key in that run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec

from backstay.errors import BackstayError, JobNotFound
from backstay.job import metadata
from backstay.job.exchange import Claimed
from backstay.job.flows import fetch_job, find_shard, send
from backstay.job.ids import shard_of
from backstay.job.model import FINAL, Job
from backstay.job.reserved import COMMAND
from backstay.job.run_model import Run
from backstay.job.store import Store
from backstay.job.view import decode_plain
from backstay.job.worker.execution.inject_results import inject_results
from backstay.runtime.core import Core
from backstay.runtime.serialization import to_json_value
from backstay.server.http.problem import not_found
from backstay.server.views.pages import LightJobs, read_jobs
from backstay.server.workers.plain_script import render_script
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.job_type import build_identity, group_by_job
from backstay.workflow.command.render import any_references_needs, render_outputs
from backstay.workflow.command.spec import CommandSpec
from backstay.workflow.command.variables import build_run_variables
from backstay.workflow.expressions.expression import Context, Need, Result, as_text
from backstay.workflow.planning.needs import as_strings, decode_outputs, load_needs
from backstay.workflow.run import RunDoc, unpack_doc

#: For jobs that belong to no run, URL paths contain this instead of a workflow's name.
NO_WORKFLOW = "-"
#: The largest number of cached plans. A run's plan never changes.
MAX_PLANS = 2000


class JobDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What an HTTP worker gets in addition to the stored fields of its claimed job: the job's name, command,
    environment and inputs, and the outputs of the jobs that it needs.
    """

    name: str
    workflow: str
    command: str = ""
    args: Any = None
    env: dict[str, str] = {}
    inputs: dict[str, Any] = {}
    upstream: dict[str, dict[str, str]] = {}
    #: The results (`success`, `failure`, …) of the jobs that this job needs, by their keys.
    results: dict[str, Result] = {}
    #: The steps and declared outputs of a command job.
    spec: CommandSpec | None = None


class RunPlan(msgspec.Struct, frozen=True):
    """What is fixed when a run starts: its document (inputs and initial jobs), and `names`, the job key by chain id."""

    workflow: str
    doc: RunDoc
    names: dict[str, str]
    #: Ids of the chains whose first job is internal: it evaluates the `if` of a job, or creates the jobs of a map.
    decided: frozenset[str] = frozenset()


class RunLookup:
    """Looks up runs, plans and jobs in the store. Caches plans."""

    def __init__(self, core: Core, store: Store) -> None:
        self._core = core
        self._store = store
        self._plans: OrderedDict[str, RunPlan] = OrderedDict()

    # ── runs ──

    async def load_plan(self, run_id: str) -> RunPlan:
        """Return a run's plan, from the cache or the store. Raises Refusal (404)."""
        found = self._plans.get(run_id)
        if found is None:
            found = self._cache_plan(await self.get_run(run_id))
        return found

    async def plan_of(self, run: Run) -> RunPlan:
        """Return the plan of a run that the caller has read: from its document or, if that was not read, as load_plan
        does.
        """
        return self._cache_plan(run) if run.doc else await self.load_plan(run.id)

    def _cache_plan(self, run: Run) -> RunPlan:
        """Unpack and cache the plan of a run. `run.doc` must be filled: `get_run` with `doc=False` leaves it empty."""
        doc = unpack_doc(run.doc)
        names = {job.id: job.key for job in doc.jobs}
        decided = frozenset(job.id for job in doc.jobs if job.decided)
        plan = self._plans[run.id] = RunPlan(run.workflow, doc, names, decided)
        if len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)
        return plan

    async def get_run(self, run_id: str, *, doc: bool = True) -> Run:
        """Read a run. With `doc=False`, its document is not read. Raises Refusal (404)."""
        try:
            known = 0 <= shard_of(run_id) < self._store.shards
        except ValueError:
            known = False
        run = await send(self._core, self._store.get_run(run_id, doc=doc)) if known else None
        if run is None:
            raise not_found("run", run_id, "it may have been pruned")
        return run

    async def find_run(self, workflow: str, run_id: str = "", *, doc: bool = True) -> Run:
        """Return a run of a workflow: the one with `run_id`, by default the latest. With `doc=False`, its document is
        not read. Raises Refusal (404).
        """
        if run_id:
            run = await self.get_run(run_id, doc=doc)
            if run.workflow != workflow:
                raise not_found("run", run_id, f"the run with this id is not of workflow {workflow[:100]!r}")
            return run
        runs = await send(self._core, self._store.list_runs(workflow=workflow, limit=1))
        if not runs:
            raise not_found("run of workflow", workflow, "GET /api/workflows lists the workflows")
        return await self.get_run(runs[0].id) if doc else runs[0]

    async def list_jobs(self, run_id: str) -> list[Job]:
        """List all jobs of a run, the oldest first, without arguments and without large results (LEFT_OUT)."""
        light = LightJobs()
        found = [light.lighten(job) async for job in read_jobs(self._core, self._store, run=run_id)]
        return found[::-1]

    # ── jobs ──

    async def find_job(self, workflow: str, name: str, run_id: str = "", *, first: bool = False) -> Job:
        """Find a job by its id, or by its key in a run. All jobs of a chain have the same key: it finds the last job of
        the chain or, with `first`, the first job. Raises Refusal (404).
        """
        job = await self._get_job(name)
        if job is not None:
            if workflow == NO_WORKFLOW and not job.run:
                return job
            if job.run and (await self.get_run(job.run, doc=False)).workflow == workflow and run_id in ("", job.run):
                return job
        if workflow == NO_WORKFLOW:
            raise not_found("job", name)
        return await self._find_by_key(await self.find_run(workflow, run_id, doc=False), name, first=first)

    async def find_job_in_run(self, run: Run, name: str) -> Job:
        """Find a job of a run by its id, or the last job of a chain by its key. Raises Refusal (404)."""
        job = await self._get_job(name)
        if job is not None and job.run == run.id:
            return job
        return await self._find_by_key(run, name, first=False)

    async def _get_job(self, job_id: str) -> Job | None:
        try:
            find_shard(self._core, job_id)
        except JobNotFound:
            return None
        return await send(self._core, self._store.get(job_id))

    async def _find_by_key(self, run: Run, name: str, *, first: bool) -> Job:
        plan = await self.plan_of(run)
        planned = plan.doc.find(name)
        if planned is not None:
            return await (fetch_job(self._core, planned.id) if first else self._last_of_chain(planned.id))
        for job in reversed(await self.list_jobs(run.id)):  # jobs that were added at run time
            if await self.key_of(job) == name:
                return await fetch_job(self._core, job.chain) if first and job.chain else job
        raise not_found("job", name, f"GET /api/runs/{run.id} lists the jobs of this run")

    async def _last_of_chain(self, chain: str) -> Job:
        """Return the last job of a chain so far."""
        job = await fetch_job(self._core, chain)
        while job.followed_by and job.state in FINAL:
            job = await fetch_job(self._core, job.followed_by)
        return job

    async def key_of(self, job: Job) -> str:
        """Return a job's key in its run, such as "build". For a job without a run, return the job's id."""
        return metadata.unpack(job.meta).key or job.id

    async def name_of(self, job_id: str, job: Job | None) -> str:
        """Like `key_of`, but reads the job if `job` is None. If the job no longer exists, returns its id."""
        if job is None:
            try:
                job = await fetch_job(self._core, job_id)
            except BackstayError:
                return job_id
        return await self.key_of(job)

    async def load_details(self, job: Claimed) -> JobDetails:
        """Collect what a worker needs for a claimed job. Raises BackstayError if a record of the job is unreadable."""
        name = metadata.unpack(job.meta).key or job.id
        if not job.run and job.type != COMMAND:
            upstream = {
                chain: as_strings(decode_outputs(raw)) for chain, raw in job.upstream.items() if raw is not None
            }
            return JobDetails(
                name=name, workflow=NO_WORKFLOW, args=to_json_value(decode_plain(job.args)), upstream=upstream
            )
        plan = await self.load_plan(job.run) if job.run else RunPlan(NO_WORKFLOW, RunDoc(workflow=NO_WORKFLOW), {})
        upstream = {
            plan.names.get(chain, chain): as_strings(decode_outputs(raw))
            for chain, raw in job.upstream.items()
            if raw is not None
        }
        if job.type != COMMAND:
            args = to_json_value(decode_plain(inject_results(job).args))
            return JobDetails(name=name, workflow=plan.workflow, args=args, upstream=upstream, inputs=plan.doc.inputs)
        spec = command_spec.decode(job.args)
        needs, _ = await load_needs(
            self._core, job.run, {key: (chain,) for key, chain in spec.needs.items()}, job.upstream
        )
        return JobDetails(
            name=name,
            workflow=plan.workflow,
            command=render_script(spec),
            args=to_json_value(decode_plain(job.args)),
            env=_variables(job, spec, needs),
            inputs=spec.inputs,
            upstream=upstream,
            results={key: need.result for key, need in needs.items()},
            spec=spec,
        )

    async def evaluate_outputs(self, job_id: str, spec: CommandSpec | None, outputs: dict[str, str]) -> dict[str, str]:
        """Return all outputs of a command job: those that its worker reported, and the outputs that its definition
        declares as expressions over the reported ones.
        """
        if spec is None or not spec.outputs:
            return outputs
        needs: Mapping[str, Need] = {}
        if any_references_needs(spec.outputs.values()):
            job = await send(self._core, self._store.get(job_id))
            chains = {key: (chain,) for key, chain in spec.needs.items()}
            needs, _ = await load_needs(self._core, job.run if job is not None else "", chains, {})
        context = Context(
            needs=group_by_job(needs),
            inputs=spec.inputs,
            matrix=spec.matrix,
            env=spec.env,
            outputs=outputs,
            steps="success",
        )
        return {**outputs, **render_outputs(spec, context)}


def _variables(job: Claimed, spec: CommandSpec, needs: Mapping[str, Need]) -> dict[str, str]:
    """Return a command's environment, without the paths of files and directories that a worker creates for the command
    (such as BACKSTAY_NEEDS_FILE). Raises ConfigError.
    """
    inputs = {name: as_text(value) for name, value in spec.inputs.items()}
    variables, _ = build_run_variables(inputs, {key: as_strings(need.outputs) for key, need in needs.items()})
    return variables | {"CI": "true"} | build_identity(job.id, job.run, job.attempt, job.fence, spec, needs) | spec.env
