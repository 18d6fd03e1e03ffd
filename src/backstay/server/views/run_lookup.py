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
from backstay.job.flows import fetch_job, known_shard, send
from backstay.job.ids import shard_of
from backstay.job.model import FINAL, Claimed, Job
from backstay.job.reserved import COMMAND
from backstay.job.run_model import Run
from backstay.job.store import Store
from backstay.job.view import plain
from backstay.job.worker.execution.inject_results import inject_results
from backstay.runtime.core import Core
from backstay.runtime.serialization import to_json_value
from backstay.server.http.problem import not_found
from backstay.server.workers.plain_script import render_script
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.job_type import build_identity, group_by_job
from backstay.workflow.command.render import any_references_needs
from backstay.workflow.command.spec import CommandSpec
from backstay.workflow.command.variables import build_run_variables
from backstay.workflow.expressions.expression import Context, Need, Result, as_text
from backstay.workflow.expressions.interpolation import interpolate
from backstay.workflow.planning.needs import as_strings, decode_outputs, load_needs
from backstay.workflow.run import RunDoc, unpack_doc

#: In paths, the workflow of jobs that belong to no run.
NO_WORKFLOW = "-"
#: Plans that are cached; they never change.
MAX_PLANS = 2000
#: Jobs of a run that are read at once.
PAGE = 1000


class JobDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker gets over HTTP beside the claimed job: its name, command, environment and upstream outputs."""

    name: str
    workflow: str
    command: str = ""
    args: Any = None
    env: dict[str, str] = {}
    inputs: dict[str, Any] = {}
    upstream: dict[str, dict[str, str]] = {}
    #: How the jobs that it needs ended.
    results: dict[str, Result] = {}
    #: The steps and declared outputs of a command job.
    spec: CommandSpec | None = None


class RunPlan(msgspec.Struct, frozen=True):
    """A run's plan: its document, and the job key of each chain id."""

    workflow: str
    doc: RunDoc
    names: dict[str, str]
    #: Chain ids that start with a decision job (`if`, maps).
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
            found = self.cache_plan(await self.get_run(run_id))
        return found

    def cache_plan(self, run: Run) -> RunPlan:
        """Unpack and cache the plan of a run that was read with its document."""
        doc = unpack_doc(run.doc)
        names = {job.id: job.key for job in doc.jobs}
        decided = frozenset(job.id for job in doc.jobs if job.decided)
        plan = self._plans[run.id] = RunPlan(run.workflow, doc, names, decided)
        if len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)
        return plan

    async def get_run(self, run_id: str) -> Run:
        """Read a run with its document. Raises Refusal (404)."""
        try:
            known = 0 <= shard_of(run_id) < self._store.shards
        except ValueError:
            known = False
        run = await send(self._core, self._store.get_run(run_id)) if known else None
        if run is None:
            raise not_found("run", run_id, "it may have been pruned")
        return run

    async def find_run(self, workflow: str, run_id: str = "") -> Run:
        """Return the named run of a workflow; without a name, the latest one. Raises Refusal (404)."""
        if run_id:
            run = await self.get_run(run_id)
            if run.workflow != workflow:
                raise not_found("run", run_id, f"or it belongs to another workflow than {workflow[:100]!r}")
            return run
        runs = await send(self._core, self._store.list_runs(workflow=workflow, limit=1))
        if not runs:
            raise not_found("run of workflow", workflow, "GET /api/workflows lists the workflows")
        return await self.get_run(runs[0].id)

    async def list_jobs(self, run_id: str) -> list[Job]:
        """List all jobs of a run, the oldest first."""
        found: list[Job] = []
        before = ""
        while True:
            page = await send(self._core, self._store.list_jobs(run=run_id, before=before, limit=PAGE))
            found += page
            if len(page) < PAGE:
                return found[::-1]
            before = page[-1].id

    # ── jobs ──

    async def find_job(self, workflow: str, name: str, run_id: str = "", *, first: bool = False) -> Job:
        """Find a job by its id, or by its key in a run: then the last job of its chain, or with `first` the first one.
        Raises Refusal (404).
        """
        try:
            known_shard(self._core, name)
            job = await send(self._core, self._store.get(name))
        except JobNotFound:
            job = None
        if job is not None:
            if workflow == NO_WORKFLOW and not job.run:
                return job
            if job.run and (await self.get_run(job.run)).workflow == workflow and run_id in ("", job.run):
                return job
        if workflow == NO_WORKFLOW:
            raise not_found("job", name)
        run = await self.find_run(workflow, run_id)
        plan = self._plans.get(run.id) or self.cache_plan(run)
        planned = plan.doc.find(name)
        if planned is not None:
            return await (fetch_job(self._core, planned.id) if first else self._last_of_chain(planned.id))
        for job in reversed(await self.list_jobs(run.id)):  # jobs that the run itself added
            if await self.key_of(job) == name:
                return await fetch_job(self._core, job.chain) if first and job.chain else job
        raise not_found("job", name, f"GET /api/runs/{run.id} lists the jobs of this run")

    async def _last_of_chain(self, chain: str) -> Job:
        """Return the current job of a chain: the last one that follows."""
        job = await fetch_job(self._core, chain)
        while job.followed_by and job.state in FINAL:
            job = await fetch_job(self._core, job.followed_by)
        return job

    async def key_of(self, job: Job) -> str:
        """Return a job's key in its run; its own id for a job without a run."""
        return metadata.unpack(job.meta).key or job.id

    async def name_of(self, job_id: str, job: Job | None) -> str:
        """Like `key_of`, for a job that may not have been read yet; a job that is gone keeps its id."""
        if job is None:
            try:
                job = await fetch_job(self._core, job_id)
            except BackstayError:
                return job_id
        return await self.key_of(job)

    async def load_details(self, job: Claimed) -> JobDetails:
        """Collect what a worker needs for a claimed job. Raises BackstayError when a record of it cannot be read."""
        name = metadata.unpack(job.meta).key or job.id
        if not job.run and job.type != COMMAND:
            upstream = {
                chain: as_strings(decode_outputs(raw)) for chain, raw in job.upstream.items() if raw is not None
            }
            return JobDetails(name=name, workflow=NO_WORKFLOW, args=to_json_value(plain(job.args)), upstream=upstream)
        plan = await self.load_plan(job.run) if job.run else RunPlan(NO_WORKFLOW, RunDoc(workflow=NO_WORKFLOW), {})
        upstream = {
            plan.names.get(chain, chain): as_strings(decode_outputs(raw))
            for chain, raw in job.upstream.items()
            if raw is not None
        }
        if job.type != COMMAND:
            args = to_json_value(plain(inject_results(job).args))
            return JobDetails(name=name, workflow=plan.workflow, args=args, upstream=upstream, inputs=plan.doc.inputs)
        spec = command_spec.decode(job.args)
        needs, _ = await load_needs(
            self._core, job.run, {key: (chain,) for key, chain in spec.needs.items()}, job.upstream
        )
        return JobDetails(
            name=name,
            workflow=plan.workflow,
            command=render_script(spec),
            args=to_json_value(plain(job.args)),
            env=_variables(job, spec, needs),
            inputs=spec.inputs,
            upstream=upstream,
            results={key: need.result for key, need in needs.items()},
            spec=spec,
        )

    async def evaluate_outputs(self, job_id: str, spec: CommandSpec | None, outputs: dict[str, str]) -> dict[str, str]:
        """Return all outputs of a command job: those that its worker reported, and those that its definition declares
        as expressions over them.
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
        return {**outputs, **{name: interpolate(text, context) for name, text in spec.outputs.items()}}


def _variables(job: Claimed, spec: CommandSpec, needs: Mapping[str, Need]) -> dict[str, str]:
    """Return a command's environment, without the variables for files that its worker creates. Raises ConfigError."""
    inputs = {name: as_text(value) for name, value in spec.inputs.items()}
    variables, _ = build_run_variables(inputs, {key: as_strings(need.outputs) for key, need in needs.items()})
    return variables | {"CI": "true"} | build_identity(job.id, job.run, job.attempt, job.fence, spec, needs) | spec.env
