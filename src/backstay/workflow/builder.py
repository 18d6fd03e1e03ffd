"""The jobs of a run, put together in Python: `flow.add(build, version)`, `flow.map(test, ["3.11", "3.12"])`.

What a call says of another's result (`wheel.output`) is put in when it is known; whoever speaks of a result waits for
it. The function that puts a flow together runs where the run is started, before anything is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast, get_args

from msgspec.structs import replace

from backstay.errors import BadExpression, ConfigError
from backstay.job.api.definition import BaseJobType
from backstay.job.api.registry import ids_of, store_of
from backstay.job.ids import shard_of
from backstay.job.model import NewJob, When
from backstay.job.reserved import DECIDE, MAP
from backstay.job.run_model import LARGEST_RUN
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.workflow.document.suggestion import meant
from backstay.workflow.expressions.expression import parse
from backstay.workflow.flow_call import Call
from backstay.workflow.planning.condition import condition
from backstay.workflow.planning.decide import Decision, Spread, internal_job
from backstay.workflow.planning.keys import spread_keys
from backstay.workflow.run import RunJob
from backstay.workflow.task import After, Output, Task

R = TypeVar("R")

#: Keys of runs are shown and typed.
LONGEST_KEY = 200
#: Conditions that a store knows by itself.
WHENS: tuple[str, ...] = get_args(When)


class Flow:
    """The jobs of a run that is being put together."""

    def __init__(self, core: Core, workflow: str, values: Mapping[str, Any], run_id: str = "") -> None:
        self.workflow = workflow
        #: What the run was told, by name.
        self.inputs = dict(values)
        self._ids = ids_of(core)
        self.run_id = run_id or self._ids.anywhere(store_of(core).shards)
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
        """A call of a job, with values or outputs of others as arguments; it waits for those, and for `after`.

        when: "all_success", "all_done", "any_failure", or an expression like "needs.check.outputs.changed == 'yes'".
        soft: its failure holds nobody up. key: what it is called in the run (the job's name). Everything else, labels
        and retries say, goes with the job: `flow.add(build.options(retries=0), …)`.
        """
        call = Call(self, job, args, kwargs, after)
        name = self._key(key, call.job.name)
        built = call.job.member(
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
        chain = self._place(name, name, built, call, when)
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
        """A call of a job for each item, which is its first argument. Its output is the list of theirs, in order.

        items: values; or the output of another job that returns a list: then the calls are made when it is known.
        """
        if isinstance(items, (str, bytes, Task, Mapping)):
            kind = type(cast("object", items)).__name__
            raise ConfigError(f"flow.map takes a list, or an output as in flow.map(job, other.output); got {kind}")
        if isinstance(items, Output):
            return self._spread(job, cast("Output[object]", items), args, kwargs, key, after, when, soft)
        given = list(items)
        name = self._key(key, job.name if isinstance(cast("object", job), BaseJobType) else "")
        chains: list[str] = []
        call: Call | None = None
        for own, item in zip(spread_keys(name, given), given, strict=True):
            # Most items are plain: all but the item is as it was with the one before.
            raw = call.with_item(item) if call is not None else None
            if call is None or raw is None:
                call = Call(self, job, (item, *args), kwargs, after)
                raw = call.raw
            elif call.placed is not None:
                chains.append(self._place_another(own, raw, call, *call.placed))
                continue
            built = call.job.member(
                (item, *args),
                kwargs,
                raw,
                id_=self._ids.new(self._shard),
                run=self.run_id,
                key=self._key(own, own),
                fills=call.fills,
                after=call.chains,
                soft=soft,
            )
            chains.append(self._place(own, name, built, call, when))
            if built.concurrency is None and not self.doc[-1].decided:
                call.placed = self.jobs[-1], self.doc[-1]
        return Task(self, name, tuple(chains), many=True)

    def _spread(
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
        call = Call(self, job, (items, *args), kwargs, after)
        name = self._key(key, call.job.name)
        place = next(iter(call.values))
        source = next(one for one in call.fills if one.place == (place,))
        built = call.job.member(
            (items, *args), kwargs, call.raw, id_=self._ids.new(self._shard), run=self.run_id, key=name, soft=soft
        )
        plan = Spread(
            job=built,
            source=source,
            argument=place,
            fills=tuple(one for one in call.fills if one is not source),
            key=name,
        )
        like = replace(built, id=self._ids.new(self._shard), after=call.chains)
        chain = self._place(name, name, internal_job(MAP, plan, like), call, when, type_=built.type)
        return Task(self, name, (chain,))

    # ── how it is kept ──

    def _key(self, key: str, usual: str) -> str:
        """A name of its own. One that was given is refused when it is taken; one that was made up is numbered."""
        name = validation.name(key or usual, "key")
        if len(name) > LONGEST_KEY or not name.isprintable():
            raise ConfigError(f"a key has up to {LONGEST_KEY} printable characters; got {name!r}")
        if name in self._keys:
            if key:
                raise ConfigError(f"two jobs of workflow {self.workflow!r} are called {name!r}; give one another key=")
            name = next(made for n in range(2, LARGEST_RUN + 2) if (made := f"{name}-{n}") not in self._keys)
        self._keys.add(name)
        return name

    def _place(self, key: str, group: str, job: NewJob, call: Call, when: str, *, type_: str = "") -> str:
        """Put a job into the run, behind a decision where its condition needs one. Answers its chain."""
        text = ""
        if when in WHENS:
            if when != job.when:
                job = replace(job, when=cast("When", when))
        else:
            known = self._condition(when, call)
            job, text = replace(job, when=known.when), known.text
        if text:
            decision = Decision(
                job=replace(job, when="all_done"),
                condition=text,
                needs={task.key: task.chains for task in call.tasks},
                inputs=self.inputs,
            )
            job = internal_job(DECIDE, decision, replace(job, id=self._ids.new(self._shard)))
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
        return self._keep(job, doc)

    def _place_another(self, key: str, raw: bytes, call: Call, like: NewJob, doc: RunJob) -> str:
        """The same for a call that differs from one that has been placed in an argument and its key alone."""
        own = self._key(key, key)
        job = call.job.another(like, raw, id_=self._ids.new(self._shard), key=own, fills=call.fills)
        return self._keep(job, replace(doc, key=key, id=job.id, name=key))

    def _keep(self, job: NewJob, doc: RunJob) -> str:
        self.jobs.append(job)
        if len(self.jobs) > LARGEST_RUN:
            raise ConfigError(f"a run has at most {LARGEST_RUN} jobs")
        self.doc.append(doc)
        self._key_of[job.id] = doc.key
        return job.id

    def _condition(self, when: str, call: Call) -> Any:
        if not isinstance(cast("object", when), str):
            raise ConfigError(f"when is text, as in when='all_done'; got {type(when).__name__}")
        try:
            expression = parse(when)
            known = condition(when, needs=bool(call.chains))
        except BadExpression as error:
            whens = ", ".join(WHENS)
            raise ConfigError(f"when is one of {whens}, or an expression: {error}") from error
        there: dict[str, Iterable[str]] = {"needs": [task.key for task in call.tasks], "inputs": self.inputs}
        for reference in expression.references:
            root, name = reference.path[0], reference.path[1]
            if root not in there:
                raise ConfigError(f"when={when!r}: {root} is of YAML; here there are needs and inputs")
            if name not in there[root]:
                hint = meant(name, there[root]) or ("; pass it in after=" if root == "needs" else "")
                raise ConfigError(f"when={when!r}: there is no {root}.{name}{hint}")
        return known
