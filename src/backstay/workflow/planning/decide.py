"""What a run does between its jobs, as jobs of Backstay's own: every worker runs them, on its event loop.

decide: whether a job is to be done, and with which texts. map: one job for each item of a list that is known only now.
gather: what became of them, as a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from backstay.errors import BadArgument, WorkflowError
from backstay.job import metadata
from backstay.job.api.context import current_job, go_on
from backstay.job.api.definition import BaseJobType
from backstay.job.api.registry import ids_of
from backstay.job.api.retry import Skip
from backstay.job.ids import shard_of
from backstay.job.metadata import Fill, Meta
from backstay.job.model import LARGEST_PRIORITY, NewJob
from backstay.job.reserved import COMMAND, DECIDE, GATHER, INTERNAL, MAP
from backstay.job.run_model import LARGEST_RUN
from backstay.job.worker.execution.inject_results import fill
from backstay.job.worker.execution.outcome import Encoded, Raised
from backstay.runtime.core import Core
from backstay.runtime.serialization import ANYTHING
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.render import fit
from backstay.workflow.expressions.expression import Context, parse
from backstay.workflow.planning.keys import spread_keys
from backstay.workflow.planning.needs import needs_of

#: A list that makes more jobs than that is a mistake more often than a wish; the run has room for others, too.
MOST_ITEMS = LARGEST_RUN // 2
#: Attempts after the first at what Backstay does itself: an engine that is away for a moment.
RETRIES = 5
NOTHING = b"\xc0"


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that may have to be done."""

    #: Carries on the chain, if it is.
    job: NewJob
    #: "": it is to be done, and only its texts are open.
    condition: str = ""
    #: By job of the definition: its chains.
    needs: dict[str, tuple[str, ...]] = {}
    inputs: dict[str, Any] = {}
    matrix: dict[str, Any] = {}


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job for each item of a result."""

    #: How each is made: its arguments have gaps for what others came to.
    job: NewJob
    #: Whose result is the list.
    source: Fill
    #: The argument that an item becomes.
    argument: str
    fills: tuple[Fill, ...] = ()
    key: str


class Gathering(msgspec.Struct, frozen=True, kw_only=True):
    """What to wait for, in order. `soft`: what did not complete is None."""

    chains: tuple[str, ...]
    soft: bool
    key: str


def internal_job(kind: str, plan: Any, like: NewJob, **changes: Any) -> NewJob:
    """A job of Backstay's own, in the place of `like` in its run."""
    given: dict[str, Any] = {
        "id": like.id,
        "type": kind,
        "queue": INTERNAL,
        "args": ANYTHING.encode({"plan": plan}),
        "meta": metadata.pack(Meta(key=metadata.unpack(like.meta).key)),
        "priority": LARGEST_PRIORITY,
        "retries": RETRIES,
        "after": like.after,
        "when": like.when,
        "soft": like.soft,
        "run": like.run,
        "keep": like.keep,
        "keep_failed": like.keep_failed,
    }
    return NewJob(**{**given, **changes})


async def decide(core: Core, plan: Decision) -> None:
    """Whether a job is to be done."""
    ctx = current_job()
    needs, failed = await needs_of(core, ctx.run, plan.needs, ctx.upstream)
    context = Context(needs=needs, inputs=plan.inputs, matrix=plan.matrix, failed=failed)
    job = plan.job
    if job.type == COMMAND:
        spec = fit(command_spec.decode(job.args), context)
        job = replace(job, args=command_spec.encode(spec))
        context = replace(context, env=spec.env)
    if plan.condition and not parse(plan.condition).holds(context):
        raise Skip(f"if {plan.condition} does not hold")
    go_on(job)


async def spread(core: Core, plan: Spread) -> Any:
    """One job for each item."""
    ctx = current_job()
    upstream = ctx.upstream
    found: dict[str, Any] = {"items": None}
    fill(found, (replace(plan.source, place=("items",)),), upstream, plan.job.type)
    items = found["items"]
    if not isinstance(items, list):
        raise WorkflowError(
            f"{plan.key!r} is to be done for each item of a list, and what it was given is {type(items).__name__};"
            " return a list from the job whose output is mapped over"
        )
    given = cast("Sequence[Any]", items)
    if len(given) > MOST_ITEMS:
        raise WorkflowError(
            f"{plan.key!r}: {len(given)} items, and at most {MOST_ITEMS} are spread; take them in parts"
        )
    if not given:
        return []
    common: dict[str, Any] = cast("dict[str, Any]", ANYTHING.decode(plan.job.args)) if plan.job.args else {}
    fill(common, plan.fills, upstream, plan.job.type)
    ids, shard = ids_of(core), shard_of(ctx.id)
    carried = metadata.unpack(plan.job.meta)
    adds = tuple(
        replace(
            plan.job,
            id=ids.new(shard),
            args=ANYTHING.encode({**common, plan.argument: item}),
            meta=metadata.pack(replace(carried, key=key)),
        )
        for key, item in zip(spread_keys(plan.key, given), given, strict=True)
    )
    chains = tuple(job.id for job in adds)
    like = replace(plan.job, id=ids.new(shard), after=chains, when="all_done", meta=metadata.pack(Meta(key=plan.key)))
    gathering = Gathering(chains=chains, soft=plan.job.soft, key=plan.key)
    go_on(internal_job(GATHER, gathering, like), adds)
    return len(adds)


async def gather(_: Core, plan: Gathering) -> Any:
    """What became of them, as a list."""
    upstream = current_job().upstream
    lost = sum(upstream.get(chain) is None for chain in plan.chains)
    if lost and not plan.soft:
        raise WorkflowError(f"{lost} of {len(plan.chains)} jobs of {plan.key!r} did not complete")
    return Encoded(msgspec.msgpack.encode([msgspec.Raw(upstream.get(chain) or NOTHING) for chain in plan.chains]))


class Internal(BaseJobType[..., Any]):
    """A job type of Backstay's own: not among the program's."""

    def _register(self) -> None:
        self.core.internals[self.name] = self


def install(core: Core) -> None:
    """Let workers of this Backstay run them. Safe twice."""
    if DECIDE in core.internals:
        return
    for name, function in ((DECIDE, decide), (MAP, spread), (GATHER, gather)):
        Internal(core, _bound(function, core), {"name": name, "queue": INTERNAL, "backoff": 0.2})


def _bound(function: Any, core: Core) -> Any:
    kind = function.__annotations__["plan"]
    call = partial(function, core)

    async def handler(plan: Any) -> Any:
        try:
            return await call(plan)
        except (WorkflowError, BadArgument) as error:  # it would be the same the next time
            raise Raised(type(error).__name__, str(error), "", pointless=True) from error

    handler.__annotations__ = {"plan": globals()[kind] if isinstance(kind, str) else kind, "return": Any}
    return handler
