"""Build the DAG of a run in Python: `flow.add(build, version)`, `flow.map(test, ["3.11", "3.12"])`.

A job whose arguments contain another job's result (`wheel.output`) waits for that job, and the worker inserts the
result before it calls the handler. The function that builds the flow runs in the process that starts the run, before
anything is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast, get_args

from msgspec.structs import replace

from backstay.errors import BadExpression, ConfigError
from backstay.job.api.definition import BaseJobType
from backstay.job.ids import JOB_IDS, shard_of
from backstay.job.model import NewJob, When
from backstay.job.reserved import DECIDE, MAP
from backstay.job.run_model import LARGEST_RUN
from backstay.job.store import JOB_STORE
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.workflow.document.effort import Hints
from backstay.workflow.expressions.expression import parse
from backstay.workflow.flow_call import FlowCall
from backstay.workflow.planning.condition import compile_condition
from backstay.workflow.planning.internal_jobs import DecidePlan, MapPlan, build_internal_job, map_keys
from backstay.workflow.run import RunJob
from backstay.workflow.task import After, Output, Task

R = TypeVar("R")

#: The longest key in characters. It is short, since users read and type keys.
LONGEST_KEY = 200
#: Conditions that the store checks without evaluating an expression.
WHENS: tuple[str, ...] = get_args(When)


class Flow:
    """Builder of a run's jobs. `@stay.workflow` functions receive it."""

    def __init__(self, core: Core, workflow: str, values: Mapping[str, Any], run_id: str = "") -> None:
        self.workflow = workflow
        #: The run's inputs by name.
        self.inputs = dict(values)
        self._ids = core.services.get(JOB_IDS)
        self.run_id = run_id or self._ids.new_in_any_shard(core.services.get(JOB_STORE).shards)
        self._shard = shard_of(self.run_id)
        self._keys: set[str] = set()
        self._key_of: dict[str, str] = {}
        self.jobs: list[NewJob] = []
        self.doc: list[RunJob] = []

    def add(
        self,
        job: BaseJobType[..., R],
        *args: Any,
        key: str = "",
        after: After = (),
        when: str = "all_success",
        soft: bool = False,
        **kwargs: Any,
    ) -> Task[R]:
        """Add a job. Arguments are values or outputs of other tasks; the job waits for those tasks and for `after`.

        key: The job's key in the run. Default: the name of its type.
        after: Further tasks that the job waits for, although it uses no output of theirs.
        when: The condition under which the job starts: "all_success", "all_done", "any_failure", or an expression like
            "needs.check.outputs.changed == 'yes'".
        soft: The job's failure neither skips the jobs that wait for it nor fails the run.

        Other options, like labels and retries, are set on the job type: `flow.add(build.options(retries=0), …)`.
        """
        call = FlowCall(self, job, args, kwargs, after)
        name = self._reserve_key(key, call.job.name)
        built = call.job.new_run_job(
            args,
            kwargs,
            call.raw,
            id_=self._ids.new(self._shard),
            run=self.run_id,
            key=name,
            fills=call.fills,
            after=call.chains,
            soft=soft,
        )
        chain = self._add_job(name, name, built, call, when)
        return Task(self, name, (chain,))

    def map(
        self,
        job: BaseJobType[..., R],
        items: Iterable[Any] | Output[Any],
        *args: Any,
        key: str = "",
        after: After = (),
        when: str = "all_success",
        soft: bool = False,
        **kwargs: Any,
    ) -> Task[list[R]]:
        """Add one job per item; the item is its first argument. The task's output is the list of results, in order.

        items: a list of values, or the output of a job that returns a list. In the second case, an internal map job
        adds the jobs when the list is known.
        """
        if isinstance(items, (str, bytes, Task, Mapping)):
            kind = type(cast("object", items)).__name__
            raise ConfigError(f"flow.map needs a list, or an output as in flow.map(job, other.output); got {kind}")
        if isinstance(items, Output):
            return self._map_output(job, cast("Output[object]", items), args, kwargs, key, after, when, soft)
        given = list(items)
        name = self._reserve_key(key, job.name if isinstance(cast("object", job), BaseJobType) else "")
        chains: list[str] = []
        call: FlowCall | None = None
        for own, item in zip(map_keys(name, given), given, strict=True):
            # Fast path: if the item contains no output, the job differs from the previous one in this argument only.
            raw = call.encode_with_item(item) if call is not None else None
            if call is None or raw is None:
                call = FlowCall(self, job, (item, *args), kwargs, after)
                raw = call.raw
            elif call.template is not None:
                chains.append(self._add_similar_job(own, raw, call, *call.template))
                continue
            built = call.job.new_run_job(
                (item, *args),
                kwargs,
                raw,
                id_=self._ids.new(self._shard),
                run=self.run_id,
                key=self._reserve_key(own, own),
                fills=call.fills,
                after=call.chains,
                soft=soft,
            )
            chains.append(self._add_job(own, name, built, call, when))
            if built.concurrency is None and not self.doc[-1].decided:
                call.template = self.jobs[-1], self.doc[-1]
        return Task(self, name, tuple(chains), many=True)

    def _map_output(
        self,
        job: BaseJobType[..., R],
        items: Output[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: str,
        after: After,
        when: str,
        soft: bool,
    ) -> Task[list[R]]:
        call = FlowCall(self, job, (items, *args), kwargs, after)
        name = self._reserve_key(key, call.job.name)
        place = next(iter(call.values))
        source = next(one for one in call.fills if one.place == (place,))
        built = call.job.new_run_job(
            (items, *args), kwargs, call.raw, id_=self._ids.new(self._shard), run=self.run_id, key=name, soft=soft
        )
        plan = MapPlan(
            job=built,
            source=source,
            argument=place,
            fills=tuple(one for one in call.fills if one is not source),
            key=name,
        )
        like = replace(built, id=self._ids.new(self._shard), after=call.chains)
        chain = self._add_job(name, name, build_internal_job(MAP, plan, like), call, when, type_=built.type)
        return Task(self, name, (chain,))

    # ── internals ──

    def _reserve_key(self, key: str, default: str) -> str:
        """Reserve a unique key. A duplicate of a given key raises ConfigError; a duplicate default gets a number."""
        name = validation.check_name(key or default, "key")
        if len(name) > LONGEST_KEY or not name.isprintable():
            raise ConfigError(f"a key must have at most {LONGEST_KEY} characters, all printable; got {name!r}")
        if name in self._keys:
            if key:
                raise ConfigError(
                    f"two jobs of workflow {self.workflow!r} have the key {name!r}; give one another key="
                )
            name = next(made for n in range(2, LARGEST_RUN + 2) if (made := f"{name}-{n}") not in self._keys)
        self._keys.add(name)
        return name

    def _add_job(self, key: str, group: str, job: NewJob, call: FlowCall, when: str, *, type_: str = "") -> str:
        """Add a job to the run. If its condition is an expression, an internal job that evaluates it (decide job) comes
        first. Returns the id of the job's chain.
        """
        text = ""
        if when in WHENS:
            if when != job.when:
                job = replace(job, when=cast("When", when))
        else:
            known = self._compile_condition(when, call)
            job, text = replace(job, when=known.when), known.text
        if text:
            decision = DecidePlan(
                job=replace(job, when="all_done"),
                condition=text,
                needs={task.key: task.chains for task in call.tasks},
                inputs=self.inputs,
            )
            job = build_internal_job(DECIDE, decision, replace(job, id=self._ids.new(self._shard)))
        if call.needs is None:
            call.needs = tuple(self._key_of[chain] for chain in call.chains)
        doc = RunJob(
            key=key,
            id=job.id,
            name=key,
            job=group,
            needs=call.needs,
            type=type_ or call.job.name,
            labels=call.job.labels,
            condition="" if when == "all_success" else when,
            soft=job.soft,
            retries=call.job.retries,
            decided=job.type in (DECIDE, MAP),
        )
        return self._append(job, doc)

    def _add_similar_job(self, key: str, raw: bytes, call: FlowCall, like: NewJob, doc: RunJob) -> str:
        """Add a job for another item of a map: a copy of `like`, the job of an earlier item, with this key and these
        encoded arguments (`raw`). Returns the id of the new job's chain.
        """
        own = self._reserve_key(key, key)
        job = call.job.copy_run_job(like, raw, id_=self._ids.new(self._shard), key=own, fills=call.fills)
        return self._append(job, replace(doc, key=key, id=job.id, name=key))

    def _append(self, job: NewJob, doc: RunJob) -> str:
        self.jobs.append(job)
        if len(self.jobs) > LARGEST_RUN:
            raise ConfigError(f"a run may have at most {LARGEST_RUN} jobs")
        self.doc.append(doc)
        self._key_of[job.id] = doc.key
        return job.id

    def _compile_condition(self, when: str, call: FlowCall) -> Any:
        if not isinstance(cast("object", when), str):
            raise ConfigError(f"when= must be text, as in when='all_done'; got {type(when).__name__}")
        try:
            expression = parse(when)
            known = compile_condition(when, needs=bool(call.chains))
        except BadExpression as error:
            whens = ", ".join(WHENS)
            raise ConfigError(f"when= must be one of {whens}, or an expression: {error}") from error
        there: dict[str, Iterable[str]] = {"needs": [task.key for task in call.tasks], "inputs": self.inputs}
        for reference in expression.references:
            root, name = reference.path[0], reference.path[1]
            if root not in there:
                raise ConfigError(f"when={when!r}: {root} exists only in YAML; a flow has needs and inputs")
            if name not in there[root]:
                hint = Hints().suggest(name, there[root]) or ("; pass it in after=" if root == "needs" else "")
                raise ConfigError(f"when={when!r}: {root}.{name} does not exist{hint}")
        return known
