"""Plan a run: turn a definition and its inputs into the jobs that the store inserts."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter
from typing import Any

from msgspec.structs import replace

from backstay.job import metadata
from backstay.job.ids import JOB_IDS, shard_of
from backstay.job.metadata import Meta, trace_context
from backstay.job.model import NewJob
from backstay.job.reserved import COMMAND, COMMANDS, DECIDE
from backstay.job.run_model import NewRun
from backstay.job.store import JOB_STORE
from backstay.runtime.core import Core
from backstay.runtime.validation import to_micros
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.render import references_needs, render_command
from backstay.workflow.command.spec import CommandSpec
from backstay.workflow.definition import JobSpec, Workflow
from backstay.workflow.expressions.expression import Context
from backstay.workflow.expressions.interpolation import OPEN, interpolate, parse_template
from backstay.workflow.planning.condition import compile_condition
from backstay.workflow.planning.inputs import validate_inputs
from backstay.workflow.planning.internal_jobs import DecidePlan, build_internal_job
from backstay.workflow.planning.matrix import Values, expand, format_values
from backstay.workflow.run import RunDoc, RunJob, pack_doc

#: Characters of a command that the run's document keeps for display.
LONGEST_COMMAND = 10_000


class RunPlanner:
    """Plans one run: builds its jobs in dependency order."""

    def __init__(self, core: Core, workflow: Workflow, values: Mapping[str, Any], run_id: str) -> None:
        self._workflow = workflow
        self._inputs = dict(values)
        self._trace = trace_context()
        self._ids = core.services.get(JOB_IDS)
        self.id = run_id or self._ids.new_in_any_shard(core.services.get(JOB_STORE).shards)
        self._shard = shard_of(self.id)
        #: By job of the definition: the chain of each key.
        self._made: dict[str, dict[str, str]] = {}
        self.jobs: list[NewJob] = []
        self.doc: list[RunJob] = []

    def build(self) -> None:
        for id_ in TopologicalSorter({id_: job.needs for id_, job in self._workflow.jobs.items()}).static_order():
            spec = self._workflow.jobs[id_]
            self._made[id_] = {}
            if spec.matrix is None:
                self._add(id_, spec, id_, {})
            else:
                for values in expand(spec.matrix):
                    self._add(id_, spec, f"{id_} ({format_values(values)})", values)
        written = {id_: place for place, id_ in enumerate(self._workflow.jobs)}
        self.doc.sort(key=lambda job: written[job.job])

    def _add(self, id_: str, spec: JobSpec, key: str, values: Values) -> None:
        workflow = self._workflow
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
        known = compile_condition(spec.condition, needs=bool(needs))
        decided = bool(known.text) or references_needs(command)
        # Render a command exactly once: interpolated text must never be parsed as an expression (injection). If it
        # depends on needs, its decide job renders it.
        if not decided:
            command = render_command(command, context)
        labels = tuple(sorted({interpolate(label, context) for label in spec.labels}))
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
            )
            job = build_internal_job(DECIDE, decision, first)
        self._made[id_][key] = job.id
        self.jobs.append(job)
        self.doc.append(
            RunJob(
                key=key,
                id=job.id,
                name=_name(spec, key, values, context),
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
        )


def _name(spec: JobSpec, key: str, values: Values, context: Context) -> str:
    if not spec.name:
        return key
    if values and not (OPEN in spec.name and parse_template(spec.name).expressions):
        return f"{spec.name} ({format_values(values)})"
    return interpolate(spec.name, context)


def plan_run(
    core: Core,
    workflow: Workflow,
    inputs: Mapping[str, Any],
    *,
    version: int = 0,
    trigger: str = "manual",
    run_id: str = "",
) -> NewRun:
    """Plan a run. `run_id`: chosen by the caller for idempotency: two calls with it start one run. Raises BadInput."""
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
