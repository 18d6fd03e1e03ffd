"""A definition and its inputs as a run: every job of it, made ready for the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from backstay.job import metadata
from backstay.job.api.registry import ids_of, store_of
from backstay.job.ids import shard_of
from backstay.job.metadata import Meta, trace_context
from backstay.job.model import NewJob
from backstay.job.reserved import COMMAND, COMMANDS, DECIDE
from backstay.job.run_model import NewRun
from backstay.runtime.core import Core
from backstay.runtime.validation import micros
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.render import fit, speaks_of_needs
from backstay.workflow.command.spec import CommandSpec
from backstay.workflow.definition import JobSpec, Workflow
from backstay.workflow.expressions.expression import Context
from backstay.workflow.expressions.interpolation import OPEN, fill, template
from backstay.workflow.planning.condition import condition
from backstay.workflow.planning.decide import Decision, internal_job
from backstay.workflow.planning.inputs import checked
from backstay.workflow.planning.matrix import Values, spread, suffix
from backstay.workflow.planning.order import in_order
from backstay.workflow.run import RunDoc, RunJob, pack_doc

#: What a run shows of a command.
LONGEST_COMMAND = 10_000


class Builder:
    """Makes one run."""

    def __init__(self, core: Core, workflow: Workflow, values: Mapping[str, Any], run_id: str) -> None:
        self._workflow = workflow
        self._inputs = dict(values)
        self._trace = trace_context()
        self._ids = ids_of(core)
        self.id = run_id or self._ids.anywhere(store_of(core).shards)
        self._shard = shard_of(self.id)
        #: By job of the definition: its keys and chains.
        self._made: dict[str, dict[str, str]] = {}
        self.jobs: list[NewJob] = []
        self.doc: list[RunJob] = []

    def build(self) -> None:
        for id_ in in_order({id_: job.needs for id_, job in self._workflow.jobs.items()}):
            spec = self._workflow.jobs[id_]
            self._made[id_] = {}
            if spec.matrix is None:
                self._add(id_, spec, id_, {})
            else:
                for values in spread(spec.matrix):
                    self._add(id_, spec, f"{id_} ({suffix(values)})", values)
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
        known = condition(spec.condition, needs=bool(needs))
        decided = bool(known.text) or speaks_of_needs(command)
        if not decided:  # once only: what was filled in is never read as an expression
            command = fit(command, context)
        labels = tuple(sorted({fill(label, context) for label in spec.labels}))
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
            decision = Decision(
                job=replace(job, when="all_done"),
                condition=known.text,
                needs=needs,
                inputs=self._inputs,
                matrix=values,
            )
            job = internal_job(DECIDE, decision, first)
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
    if values and not (OPEN in spec.name and template(spec.name).expressions):
        return f"{spec.name} ({suffix(values)})"
    return fill(spec.name, context)


def new_run(
    core: Core,
    workflow: Workflow,
    inputs: Mapping[str, Any],
    *,
    version: int = 0,
    trigger: str = "manual",
    run_id: str = "",
) -> NewRun:
    """`run_id`: made by the caller, so that asking twice makes one run. Raises BadInput."""
    values = checked(workflow, inputs)
    builder = Builder(core, workflow, values, run_id)
    builder.build()
    doc = RunDoc(
        workflow=workflow.name,
        inputs=values,
        jobs=tuple(builder.doc),
        trigger=trigger,
        on=workflow.on,
        title=workflow.title,
    )
    return NewRun(
        id=builder.id,
        workflow=workflow.name,
        version=version,
        doc=pack_doc(doc),
        jobs=tuple(builder.jobs),
        timeout=micros(workflow.timeout) if workflow.timeout else 0,
    )
