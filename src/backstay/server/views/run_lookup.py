"""Runs and their jobs as HTTP speaks of them: a workflow, a run of it (the latest unless one is named), and jobs by the
names they have there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec

from backstay.errors import BackstayError, JobNotFound
from backstay.job import metadata
from backstay.job.flows import known_shard, look, send
from backstay.job.ids import shard_of
from backstay.job.model import FINAL, Claimed, Job
from backstay.job.reserved import COMMAND
from backstay.job.run_model import Run
from backstay.job.store import Store
from backstay.job.view import plain
from backstay.job.worker.execution.inject_results import filled
from backstay.runtime.core import Core
from backstay.runtime.serialization import jsonable
from backstay.server.http.problem import not_found
from backstay.server.workers.plain_script import script
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.job_type import by_job, identity
from backstay.workflow.command.render import speak_of_needs
from backstay.workflow.command.spec import CommandSpec
from backstay.workflow.command.variables import inputs_and_needs
from backstay.workflow.expressions.expression import Context, Need, Result, as_text
from backstay.workflow.expressions.interpolation import fill
from backstay.workflow.planning.needs import as_strings, needs_of, outputs_of
from backstay.workflow.run import RunDoc, unpack_doc

#: The workflow of all jobs that belong to none.
NONE = "-"
#: Runs whose documents are remembered: they never change.
MOST = 2000
#: A run's jobs come in pages of this many.
PAGE = 1000


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker over HTTP is told of a job beside the job itself."""

    name: str
    workflow: str
    command: str = ""
    args: Any = None
    env: dict[str, str] = {}
    inputs: dict[str, Any] = {}
    upstream: dict[str, dict[str, str]] = {}
    #: How those before it ended.
    results: dict[str, Result] = {}
    #: What a command job is to do, and to leave.
    declared: CommandSpec | None = None


class Play(msgspec.Struct, frozen=True):
    """A run's document, and whose chain is whose."""

    workflow: str
    doc: RunDoc
    names: dict[str, str]
    #: Chains that begin with a decision about the job.
    decided: frozenset[str] = frozenset()


class Runbook:
    def __init__(self, core: Core, store: Store) -> None:
        self._core = core
        self._store = store
        self._plays: OrderedDict[str, Play] = OrderedDict()

    # ── runs ──

    async def play(self, run_id: str) -> Play:
        found = self._plays.get(run_id)
        if found is None:
            found = self.learn(await self.run(run_id))
        return found

    def learn(self, run: Run) -> Play:
        doc = unpack_doc(run.doc)
        names = {job.id: job.key for job in doc.jobs}
        decided = frozenset(job.id for job in doc.jobs if job.decided)
        play = self._plays[run.id] = Play(run.workflow, doc, names, decided)
        if len(self._plays) > MOST:
            self._plays.popitem(last=False)
        return play

    async def run(self, run_id: str) -> Run:
        """Raises Refusal (404)."""
        try:
            known = 0 <= shard_of(run_id) < self._store.shards
        except ValueError:
            known = False
        run = await send(self._core, self._store.get_run(run_id)) if known else None
        if run is None:
            raise not_found("run", run_id, "its record may be past its time")
        return run

    async def latest(self, workflow: str, run_id: str = "") -> Run:
        """The run that a request speaks of: the one it names, else the latest. Raises Refusal (404)."""
        if run_id:
            run = await self.run(run_id)
            if run.workflow != workflow:
                raise not_found("run", run_id, f"or it is none of workflow {workflow[:100]!r}")
            return run
        runs = await send(self._core, self._store.list_runs(workflow=workflow, limit=1))
        if not runs:
            raise not_found("workflow that has run, called", workflow, "look at GET /api/workflows, and start one")
        return await self.run(runs[0].id)

    async def jobs(self, run_id: str) -> list[Job]:
        """All jobs of a run, the oldest first."""
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
        """By its own id; or by its name in a run: the last job of its chain, or the first. Raises Refusal (404)."""
        try:
            known_shard(self._core, name)
            job = await send(self._core, self._store.get(name))
        except JobNotFound:
            job = None
        if job is not None:
            if workflow == NONE and not job.run:
                return job
            if job.run and (await self.run(job.run)).workflow == workflow and run_id in ("", job.run):
                return job
        if workflow == NONE:
            raise not_found("job", name)
        run = await self.latest(workflow, run_id)
        play = self._plays.get(run.id) or self.learn(run)
        planned = play.doc.find(name)
        if planned is not None:
            return await (look(self._core, planned.id) if first else self._last(planned.id))
        for job in reversed(await self.jobs(run.id)):  # what the run itself has added
            if await self.key_of(job) == name:
                return await look(self._core, job.chain) if first and job.chain else job
        raise not_found("job", name, f"GET /api/runs/{run.id} lists those of this run")

    async def _last(self, chain: str) -> Job:
        """The job that a chain has come to."""
        job = await look(self._core, chain)
        while job.followed_by and job.state in FINAL:
            job = await look(self._core, job.followed_by)
        return job

    async def key_of(self, job: Job) -> str:
        """What a job is called: its key in its run, else its own id."""
        return metadata.unpack(job.meta).key or job.id

    async def name_of(self, job_id: str, job: Job | None) -> str:
        """The same where the job may have to be looked up."""
        if job is None:
            try:
                job = await look(self._core, job_id)
            except BackstayError:
                return job_id
        return await self.key_of(job)

    async def scene(self, job: Claimed) -> Scene:
        """Raises BackstayError for a job that cannot be told."""
        name = metadata.unpack(job.meta).key or job.id
        if not job.run and job.type != COMMAND:
            upstream = {chain: as_strings(outputs_of(raw)) for chain, raw in job.upstream.items() if raw is not None}
            return Scene(name=name, workflow=NONE, args=jsonable(plain(job.args)), upstream=upstream)
        play = await self.play(job.run) if job.run else Play(NONE, RunDoc(workflow=NONE), {})
        upstream = {
            play.names.get(chain, chain): as_strings(outputs_of(raw))
            for chain, raw in job.upstream.items()
            if raw is not None
        }
        if job.type != COMMAND:
            args = jsonable(plain(filled(job).args))
            return Scene(name=name, workflow=play.workflow, args=args, upstream=upstream, inputs=play.doc.inputs)
        spec = command_spec.decode(job.args)
        needs, _ = await needs_of(
            self._core, job.run, {key: (chain,) for key, chain in spec.needs.items()}, job.upstream
        )
        return Scene(
            name=name,
            workflow=play.workflow,
            command=script(spec),
            args=jsonable(plain(job.args)),
            env=_variables(job, spec, needs),
            inputs=spec.inputs,
            upstream=upstream,
            results={key: need.result for key, need in needs.items()},
            declared=spec,
        )

    async def declared(self, job_id: str, spec: CommandSpec | None, outputs: dict[str, str]) -> dict[str, str]:
        """All outputs of a command job: what its worker put out, and what its definition makes of that."""
        if spec is None or not spec.outputs:
            return outputs
        needs: Mapping[str, Need] = {}
        if speak_of_needs(spec.outputs.values()):
            job = await send(self._core, self._store.get(job_id))
            chains = {key: (chain,) for key, chain in spec.needs.items()}
            needs, _ = await needs_of(self._core, job.run if job is not None else "", chains, {})
        context = Context(
            needs=by_job(needs),
            inputs=spec.inputs,
            matrix=spec.matrix,
            env=spec.env,
            outputs=outputs,
            steps="success",
        )
        return {**outputs, **{name: fill(text, context) for name, text in spec.outputs.items()}}


def _variables(job: Claimed, spec: CommandSpec, needs: Mapping[str, Need]) -> dict[str, str]:
    """What a command finds in its environment, but for the files that its worker makes. Raises ConfigError."""
    given = {name: as_text(value) for name, value in spec.inputs.items()}
    told, _ = inputs_and_needs(given, {key: as_strings(need.outputs) for key, need in needs.items()})
    return told | {"CI": "true"} | identity(job.id, job.run, job.attempt, job.fence, spec, needs) | spec.env
