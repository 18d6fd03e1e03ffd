"""Internal jobs of a run. Every worker runs them, on its event loop.

decide: the first job of a chain. It evaluates the condition of another job and renders that job's command. Then it
    continues the chain with that job or, if the condition does not hold, ends as skipped.
map: creates one job per item of a list that an upstream job returned.
gather: continues the chain of a map job. It collects the results of the created jobs into a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from backstay.errors import BadArgument, RunTooLarge, WorkflowError
from backstay.job import metadata
from backstay.job.api.context import continue_chain, current_job
from backstay.job.api.definition import BaseJobType
from backstay.job.api.registry import INTERNAL_JOB_TYPES
from backstay.job.api.retry import Skip
from backstay.job.ids import JOB_IDS, shard_of
from backstay.job.metadata import Fill, Meta
from backstay.job.model import LARGEST_PRIORITY, NewJob
from backstay.job.reserved import COMMAND, DECIDE, GATHER, INTERNAL, MAP
from backstay.job.run_model import LARGEST_RUN
from backstay.job.worker.execution.inject_results import put_results
from backstay.job.worker.execution.outcome import EncodedResult, HandlerError
from backstay.runtime.core import Core
from backstay.runtime.serialization import PLAIN_CODEC
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.render import render_command
from backstay.workflow.command.spec import LARGEST as LARGEST_COMMAND
from backstay.workflow.expressions.expression import Context, as_text, parse
from backstay.workflow.expressions.interpolation import LARGEST_RENDERED, TextBudget
from backstay.workflow.planning.needs import load_needs

#: The most items of one map. A longer list is probably a mistake, and the run must have room for its other jobs.
MOST_ITEMS = LARGEST_RUN // 2
#: Retries of an internal job, so that it survives a short outage of the engine.
RETRIES = 5
#: If an item has more characters, the keys of the map's jobs contain numbers instead, as in "test (0)".
LONGEST_ITEM = 40
MSGPACK_NULL = b"\xc0"


def map_keys(key: str, items: Sequence[Any]) -> list[str]:
    """Name the jobs of a map: "test (3.11)" if the items are short, printable and distinct scalars, else "test (0)"."""
    texts: list[str] = []
    for item in items:
        text = as_text(item) if isinstance(item, (str, int, float)) else ""
        if not text or len(text) > LONGEST_ITEM or not text.isprintable():
            break
        texts.append(text)
    if len(set(texts)) < len(items):
        texts = [str(number) for number in range(len(items))]
    return [f"{key} ({text})" for text in texts]


class DecidePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of a decide job."""

    #: The planned job, which continues the chain if the condition holds.
    job: NewJob
    #: The expression to evaluate. "": there is none, and the decide job only renders the command.
    condition: str = ""
    #: The ids of the needed jobs' chains, by the names that expressions use for these jobs.
    needs: dict[str, tuple[str, ...]] = {}
    inputs: dict[str, Any] = {}
    matrix: dict[str, Any] = {}
    #: Limit of the characters of the rendered command; 0: LARGEST_RENDERED.
    text_limit: int = 0


class MapPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of a map job."""

    #: The template of the jobs that are created, one per item. Its arguments are incomplete: each created job gets its
    #: item as `argument`, and upstream results where `fills` says.
    job: NewJob
    #: Says which upstream result, or which part of it, is the list of items.
    source: Fill
    #: The argument that receives the item.
    argument: str
    fills: tuple[Fill, ...] = ()
    key: str


class GatherPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a gather job, which collects the results of mapped jobs (one job per item) in a list.

    chains: the ids of the mapped jobs, in the order of the items.
    soft: if a mapped job did not complete, use None as its result (True) or fail the gather job (False).
    key: the key of the map in the run.
    """

    chains: tuple[str, ...]
    soft: bool
    key: str


def build_internal_job(kind: str, plan: Any, like: NewJob, **changes: Any) -> NewJob:
    """Build an internal job with the id, dependencies, condition and retention of the job `like`, whose place in the
    run it takes.
    """
    given: dict[str, Any] = {
        "id": like.id,
        "type": kind,
        "queue": INTERNAL,
        "args": PLAIN_CODEC.encode({"plan": plan}),
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


async def decide(core: Core, plan: DecidePlan) -> None:
    """Continue the chain with the planned job, or skip it if its condition does not hold."""
    ctx = current_job()
    needs, failed = await load_needs(core, ctx.run, plan.needs, ctx.upstream)
    context = Context(needs=needs, inputs=plan.inputs, matrix=plan.matrix, failed=failed)
    job = plan.job
    if job.type == COMMAND:
        template = command_spec.decode(job.args)
        limit = plan.text_limit or LARGEST_RENDERED
        spec = render_command(template, context, TextBudget(f"job {template.key!r}", limit))
        job = replace(job, args=command_spec.encode(spec))
        if len(job.args) > LARGEST_COMMAND:
            raise RunTooLarge(what=f"job {spec.key!r} with its inputs", limit=LARGEST_COMMAND, unit="bytes")
        context = replace(context, env=spec.env)
    if plan.condition and not parse(plan.condition).holds(context):
        raise Skip(f"condition does not hold: {plan.condition}")
    continue_chain(job)


async def map_items(core: Core, plan: MapPlan) -> Any:
    """Create one job per item, and a gather job that continues the chain."""
    ctx = current_job()
    upstream = ctx.upstream
    found: dict[str, Any] = {"items": None}
    put_results(found, (replace(plan.source, place=("items",)),), upstream, plan.job.type)
    items = found["items"]
    if not isinstance(items, list):
        raise WorkflowError(
            f"{plan.key!r} maps over a list, but the mapped output is {type(items).__name__};"
            " return a list from the job whose output is mapped"
        )
    given = cast("Sequence[Any]", items)
    if len(given) > MOST_ITEMS:
        raise WorkflowError(
            f"{plan.key!r} maps over {len(given)} items, but at most {MOST_ITEMS} are allowed; split the list"
        )
    if not given:
        return []
    common: dict[str, Any] = cast("dict[str, Any]", PLAIN_CODEC.decode(plan.job.args)) if plan.job.args else {}
    put_results(common, plan.fills, upstream, plan.job.type)
    ids, shard = core.services.get(JOB_IDS), shard_of(ctx.id)
    carried = metadata.unpack(plan.job.meta)
    adds = tuple(
        replace(
            plan.job,
            id=ids.new(shard),
            args=PLAIN_CODEC.encode({**common, plan.argument: item}),
            meta=metadata.pack(replace(carried, key=key)),
        )
        for key, item in zip(map_keys(plan.key, given), given, strict=True)
    )
    chains = tuple(job.id for job in adds)
    like = replace(plan.job, id=ids.new(shard), after=chains, when="all_done", meta=metadata.pack(Meta(key=plan.key)))
    gathering = GatherPlan(chains=chains, soft=plan.job.soft, key=plan.key)
    continue_chain(build_internal_job(GATHER, gathering, like), adds)
    return len(adds)


async def gather(_: Core, plan: GatherPlan) -> Any:
    """Return the results of the mapped jobs as a list."""
    upstream = current_job().upstream
    lost = sum(upstream.get(chain) is None for chain in plan.chains)
    if lost and not plan.soft:
        raise WorkflowError(f"{lost} of {len(plan.chains)} jobs of {plan.key!r} did not complete")
    return EncodedResult(
        msgspec.msgpack.encode([msgspec.Raw(upstream.get(chain) or MSGPACK_NULL) for chain in plan.chains])
    )


class InternalJobType(BaseJobType[..., Any]):
    """The type of an internal job. It is registered in INTERNAL_JOB_TYPES, apart from the job types of the program."""

    def _register(self) -> None:
        self.core.services.get(INTERNAL_JOB_TYPES)[self.name] = self


def install(core: Core) -> None:
    """Register the internal job types, so that workers of this Backstay run them. Idempotent."""
    if DECIDE in core.services.get(INTERNAL_JOB_TYPES):
        return
    for name, function in ((DECIDE, decide), (MAP, map_items), (GATHER, gather)):
        InternalJobType(core, _make_handler(function, core), {"name": name, "queue": INTERNAL, "backoff": 0.2})


def _make_handler(function: Any, core: Core) -> Any:
    kind = function.__annotations__["plan"]
    call = partial(function, core)

    async def handler(plan: Any) -> Any:
        try:
            return await call(plan)
        except (WorkflowError, BadArgument) as error:  # deterministic: a retry would fail the same way
            raise HandlerError(type(error).__name__, str(error), "", pointless=True) from error

    handler.__annotations__ = {"plan": globals()[kind] if isinstance(kind, str) else kind, "return": Any}
    return handler
