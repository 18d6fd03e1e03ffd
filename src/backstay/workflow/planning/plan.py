"""Plan a run: turn a definition and its inputs into the jobs that the store inserts."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from backstay.errors import RunTooLarge
from backstay.job import metadata
from backstay.job.ids import JOB_IDS, shard_of
from backstay.job.metadata import Meta, trace_context
from backstay.job.model import NewJob
from backstay.job.reserved import COMMAND, COMMANDS, DECIDE
from backstay.job.run_model import LARGEST_RUN, NewRun
from backstay.job.store import JOB_STORE
from backstay.runtime.core import Core
from backstay.runtime.validation import to_micros
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.render import references_needs, render_command
from backstay.workflow.command.spec import CommandSpec
from backstay.workflow.definition import JobSpec, Workflow
from backstay.workflow.expressions.expression import Context
from backstay.workflow.expressions.interpolation import LARGEST_RENDERED, OPEN, TextBudget, interpolate, parse_template
from backstay.workflow.planning.condition import Condition, compile_condition
from backstay.workflow.planning.inputs import validate_inputs
from backstay.workflow.planning.internal_jobs import DecidePlan, build_internal_job
from backstay.workflow.planning.matrix import Values, count_combinations, expand, format_values
from backstay.workflow.run import RunDoc, RunJob, pack_doc, pack_job

#: Limit of what is stored for all jobs of a run together, in bytes; also of the characters of all rendered texts.
LARGEST_TOTAL = 64 * 1024 * 1024
#: A run whose estimated cost is at most this takes milliseconds to plan, so a server does it on its event loop.
QUICK = 200_000
#: Planning a job costs as much as this many bytes, besides the bytes of the definition.
JOB_COST = 1000
#: Limit of a rendered label and of a rendered display name, in characters.
LONGEST_LABEL, LONGEST_NAME = 200, 1000
#: Bytes of a stored dependency of a job.
EDGE_SIZE = 40
#: The stored document of a run contains the text of each command, to show it to users. The text is cut to this many
#: characters; the job itself has the whole command.
LONGEST_COMMAND = 10_000


class PreparedSpec(Struct, frozen=True):
    """A job of the definition with its parsed condition. `combinations`: the matrix values of each job that it becomes;
    `decided`: a decide job comes first in their chains.
    """

    spec: JobSpec
    condition: Condition
    decided: bool
    combinations: list[Values]


class RunPlanner:
    """Plans one run: builds its jobs in dependency order."""

    def __init__(self, core: Core, workflow: Workflow, values: Mapping[str, Any], run_id: str) -> None:
        self._workflow = workflow
        self._inputs = dict(values)
        self._trace = trace_context()
        self._ids = core.services.get(JOB_IDS)
        self.id = run_id or self._ids.new_in_any_shard(core.services.get(JOB_STORE).shards)
        self._shard = shard_of(self.id)
        #: The jobs planned so far. By job id in the definition ("test"): the chain id of each of its jobs in the run,
        #: by the key of that job ("test (3.11)"). A job with a matrix has several.
        self._made: dict[str, dict[str, str]] = {}
        self.jobs: list[NewJob] = []
        self.doc: list[RunJob] = []
        self._budget = TextBudget("all jobs of the run", LARGEST_TOTAL)
        self._stored = 0
        #: How many characters each decide job may add to its command, so that all of them together stay within the
        #: limit of the run.
        self._share = 0

    def build(self) -> None:
        """Plan all jobs. Raises RunTooLarge as soon as the run exceeds a limit."""
        jobs = {id_: self._prepare(spec) for id_, spec in self._workflow.jobs.items()}
        if sum(len(job.combinations) for job in jobs.values()) > LARGEST_RUN // 2:
            raise RunTooLarge(what="the run", limit=LARGEST_RUN // 2, unit="jobs")
        self._share = LARGEST_TOTAL // max(1, sum(len(job.combinations) for job in jobs.values() if job.decided))
        for id_ in TopologicalSorter({id_: job.needs for id_, job in self._workflow.jobs.items()}).static_order():
            job = jobs[id_]
            self._made[id_] = {}
            for values in job.combinations:
                key = f"{id_} ({format_values(values)})" if job.spec.matrix is not None else id_
                self._add_job(id_, job, key, values)
        written = {id_: place for place, id_ in enumerate(self._workflow.jobs)}
        self.doc.sort(key=lambda job: written[job.job])

    def _prepare(self, spec: JobSpec) -> PreparedSpec:
        """Do once what is the same for all jobs of a matrix: parse the condition and the templates."""
        condition = compile_condition(spec.condition, needs=bool(spec.needs))
        env = {**self._workflow.env, **spec.env}
        command = CommandSpec(steps=spec.steps, env=env, working_directory=spec.working_directory)
        return PreparedSpec(
            spec=spec,
            condition=condition,
            decided=bool(condition.text) or references_needs(command),
            combinations=expand(spec.matrix) if spec.matrix is not None else [{}],
        )

    def _add_job(self, id_: str, prepared: PreparedSpec, key: str, values: Values) -> None:
        workflow, spec, known, decided = self._workflow, prepared.spec, prepared.condition, prepared.decided
        context = Context(inputs=self._inputs, matrix=values)
        needs = {need: tuple(self._made[need].values()) for need in spec.needs}
        chains = {key: chain for need in spec.needs for key, chain in self._made[need].items()}
        command = CommandSpec(
            steps=spec.steps,
            env={**workflow.env, **spec.env},
            working_directory=spec.working_directory,
            shell=spec.shell,
            key=key,
            workflow=workflow.name,
            inputs=self._inputs,
            matrix=values,
            needs=chains,
            outputs=spec.outputs,
        )
        # Render a command exactly once: interpolated text must never be parsed as an expression (injection). If the
        # command has a decide job, that job renders it.
        if not decided:
            command = render_command(command, context, TextBudget(f"job {key!r}", whole=self._budget))
        of = f"a label of job {key!r}"
        labels = tuple(sorted({self._render(of, label, context, LONGEST_LABEL) for label in spec.labels}))
        job = NewJob(
            id=self._ids.new(self._shard),
            type=COMMAND,
            queue=COMMANDS,
            args=command_spec.encode(command),
            meta=metadata.pack(Meta(spec.timeout, spec.backoff, self._trace, key=key)),
            labels=labels,
            priority=spec.priority,
            retries=spec.retries,
            after=tuple(chains.values()),
            when=known.when,
            soft=spec.soft,
            run=self.id,
        )
        if decided:
            first = replace(job, id=self._ids.new(self._shard))
            decision = DecidePlan(
                job=replace(job, when="all_done"),
                condition=known.text,
                needs=needs,
                inputs=self._inputs,
                matrix=values,
                text_limit=min(LARGEST_RENDERED, 2 * len(job.args) + self._share),
            )
            job = build_internal_job(DECIDE, decision, first)
        self._made[id_][key] = job.id
        planned = RunJob(
            key=key,
            id=job.id,
            name=self._display_name(spec, key, values, context),
            job=id_,
            needs=tuple(chains),
            type=COMMAND,
            command="\n".join(step.run for step in command.steps)[:LONGEST_COMMAND],
            labels=labels,
            condition=spec.condition,
            soft=spec.soft,
            retries=spec.retries,
            matrix=values,
            decided=decided,
        )
        self._count_stored(job, planned)
        self.jobs.append(job)
        self.doc.append(planned)

    def _count_stored(self, job: NewJob, planned: RunJob) -> None:
        """Count the bytes that the store keeps for a job, before the next job is planned. Raises RunTooLarge."""
        if len(job.args) > command_spec.LARGEST:
            raise RunTooLarge(what=f"job {planned.key!r} with its inputs", limit=command_spec.LARGEST, unit="bytes")
        self._stored += len(job.args) + len(job.meta) + EDGE_SIZE * len(job.after) + len(pack_job(planned))
        if self._stored > LARGEST_TOTAL:
            raise RunTooLarge(what="the jobs of the run together", limit=LARGEST_TOTAL, unit="bytes")

    def _render(self, what: str, text: str, context: Context, most: int) -> str:
        """Render a short text, such as a label. Raises RunTooLarge."""
        rendered = interpolate(text, context, TextBudget(what, whole=self._budget))
        if len(rendered) > most:
            raise RunTooLarge(what=what, limit=most)
        return rendered

    def _display_name(self, spec: JobSpec, key: str, values: Values, context: Context) -> str:
        if not spec.name:
            return key
        if values and not (OPEN in spec.name and parse_template(spec.name).expressions):
            return f"{spec.name} ({format_values(values)})"
        return self._render(f"the name of job {key!r}", spec.name, context, LONGEST_NAME)


def estimate_cost(workflow: Workflow, size: int) -> int:
    """Estimate the work of planning a run, without planning it: bytes times jobs. `size`: the bytes of the stored
    definition and of the inputs.
    """
    return (size + JOB_COST) * sum(
        count_combinations(job.matrix) if job.matrix else 1 for job in workflow.jobs.values()
    )


def plan_run(
    core: Core,
    workflow: Workflow,
    inputs: Mapping[str, Any],
    *,
    version: int = 0,
    trigger: str = "manual",
    run_id: str = "",
) -> NewRun:
    """Plan a run. The caller may choose `run_id` for idempotency: starting two runs with the same id starts one. Raises
    BadInput, RunTooLarge. A large run takes seconds: a server plans it outside its event loop.
    """
    values = validate_inputs(workflow, inputs)
    planner = RunPlanner(core, workflow, values, run_id)
    planner.build()
    doc = RunDoc(
        workflow=workflow.name,
        inputs=values,
        jobs=tuple(planner.doc),
        trigger=trigger,
        on=workflow.on,
        title=workflow.title,
    )
    return NewRun(
        id=planner.id,
        workflow=workflow.name,
        version=version,
        doc=pack_doc(doc),
        jobs=tuple(planner.jobs),
        timeout=to_micros(workflow.timeout) if workflow.timeout else 0,
    )
