"""Job types: `@stay.job(...)` turns a function into a job type, whose `enqueue` takes the function's parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, get_args, overload

from msgspec.structs import replace

from backstay.errors import ConfigError
from backstay.job import flows, metadata
from backstay.job.api.codec import PAYLOAD_LIMIT, RESULT_LIMIT, Call, JobCodec
from backstay.job.api.handle import BlockingJobHandle, JobHandle
from backstay.job.api.middleware import MIDDLEWARE, check_trace
from backstay.job.api.options import (
    CallOptions,
    CatchUp,
    DefinitionOptions,
    Options,
    Pool,
    ResolvedOptions,
    resolve_options,
)
from backstay.job.api.registry import register
from backstay.job.api.retry import AnyBackoff, Backoff
from backstay.job.ids import JOB_IDS
from backstay.job.metadata import Fill, Meta, trace_context
from backstay.job.model import Concurrency, Enqueued, NewJob, UniformBatch, Unique, When
from backstay.job.scheduler.cron import parse_cron
from backstay.job.sharding import shard_for
from backstay.job.store import JOB_STORE
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS = frozenset(Options.__annotations__)
_CALL = frozenset(CallOptions.__annotations__) | _OPTIONS
_DEFINITION = frozenset(DefinitionOptions.__annotations__) | _OPTIONS

#: The arguments of one call in `enqueue_many`: a sequence, or a mapping by name.
Arguments = Sequence[Any] | Mapping[str, Any]


class BaseJobType(Generic[P, R]):
    """The part of job types that the async and the blocking API share. Calling a job type calls its function."""

    def __init__(self, core: Core, function: Callable[P, Any], given: DefinitionOptions) -> None:
        self.core = core
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        if not inspect.isroutine(cast("object", function)):
            raise ConfigError("@stay.job must decorate a function")
        own = cast("dict[str, Any]", given)
        self.name: str = validation.check_label(own.get("name") or str(getattr(function, "__name__", "")), "name")
        self.pool: Pool = own.get("pool", "thread")
        if self.pool not in get_args(Pool) or (self.is_async and "pool" in own):
            raise ConfigError(f"pool of {self.name!r} must be 'thread' or 'process'; an async function takes no pool")
        self.codec = JobCodec(
            self.name,
            function,
            validation.check_count(own.get("payload_limit", PAYLOAD_LIMIT), "payload_limit"),
            validation.check_count(own.get("result_limit", RESULT_LIMIT), "result_limit"),
        )
        extras = _DEFINITION - _OPTIONS
        if unknown := sorted(set(own) - _DEFINITION):
            raise ConfigError(
                f"{', '.join(unknown)}: no such option of a job; the options are {', '.join(sorted(_DEFINITION))}"
            )
        options = {option: value for option, value in own.items() if option not in extras}
        self.resolved = resolve_options(ResolvedOptions(), options, self.name, function, call=False, allowed=_OPTIONS)
        self.cron: str | None = own.get("cron")
        self.timezone: str = own.get("timezone", "UTC")
        self.catch_up: CatchUp = own.get("catch_up", "one")
        self._check_cron()
        functools.update_wrapper(cast("Callable[..., Any]", self), function)
        self._register()

    def _check_cron(self) -> None:
        if self.catch_up not in get_args(CatchUp):
            raise ConfigError(f"catch_up must be one of {', '.join(get_args(CatchUp))}; got {self.catch_up!r}")
        if self.cron is None:
            return
        parse_cron(self.cron, self.timezone)
        if needed := self.codec.required:
            raise ConfigError(f"job {self.name!r} has a cron schedule, so {', '.join(needed)} must have defaults")

    def _register(self) -> None:
        register(self.core, self)

    def _encode_args(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self.codec.encode_args(args, kwargs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def queue(self) -> str:
        return self.resolved.queue

    @property
    def labels(self) -> tuple[str, ...]:
        return self.resolved.labels

    @property
    def priority(self) -> int:
        return self.resolved.priority

    @property
    def retries(self) -> int:
        return self.resolved.retries

    @property
    def backoff(self) -> AnyBackoff:
        return self.resolved.backoff

    @property
    def timeout(self) -> float:
        """Time limit of an attempt in seconds; 0: no limit."""
        return self.resolved.timeout

    def decode_args(self, raw: bytes) -> Call:
        """Decode a call's arguments. Raises BadArgument."""
        return self.codec.decode_args(raw)

    def encode_result(self, value: R) -> bytes:
        """Encode a result. Raises BadResult, PayloadTooLarge."""
        return self.codec.encode_result(value)

    def decode_result(self, raw: bytes) -> R:
        return cast("R", self.codec.decode_result(raw))

    def options(self, **changes: Unpack[CallOptions]) -> Self:
        """Return a copy of the job type with other options: `resize.options(delay=10).enqueue("a.png")`.

        Some options can also be set in the definition: queue, retries, backoff, timeout, priority, labels,
        concurrency_key, concurrency, rate, burst, unique, unique_scope, unique_window, keep, keep_failed. The others
        exist only here: delay or at, after, when, connection.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        given = cast("dict[str, Any]", changes)
        twin.resolved = resolve_options(self.resolved, given, self.name, self.function, call=True, allowed=_CALL)
        twin.__dict__.pop("_prototype", None)
        return twin

    def new_job(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, chain: str = "", due: int = 0, cron: str = ""
    ) -> NewJob:
        """Build the job for one call with these arguments.

        chain: the id of the chain that the job continues; "": it starts its own chain.
        due: the time at which the job is due, in µs; 0: the options `delay` and `at` decide.
        cron: the name of the cron entry that enqueues the job; "": none.
        """
        own, core = self.resolved, self.core
        raw = self._encode_args(args, kwargs)
        unique = concurrency = None
        if own.unique is not None:
            key = validation.check_key(own.unique.template.key(args, kwargs), "unique")
            unique = Unique(key, own.unique.scope, own.unique.window)
        if own.concurrency is not None:
            key = validation.check_key(own.concurrency.template.key(args, kwargs), "concurrency_key")
            concurrency = Concurrency(key, own.concurrency.limit)
        shards = core.services.get(JOB_STORE).shards
        if shards == 1:
            id_ = core.services.get(JOB_IDS).new(0)
        else:
            place = shard_for(
                shards, chain=chain, concurrency=concurrency, unique=unique, after=own.after, rate=own.rate
            )
            id_ = (
                core.services.get(JOB_IDS).new_in_any_shard(shards)
                if place is None
                else core.services.get(JOB_IDS).new(place)
            )
        job = replace(self._prototype, id=id_, args=raw, meta=self._meta(cron))
        if unique is None and concurrency is None and not chain and not due:
            return job
        return replace(job, unique=unique, concurrency=concurrency, chain=chain, due=due or own.due)

    @functools.cached_property
    def _prototype(self) -> NewJob:
        """A job with the fields that depend only on the options, not on a call's arguments. It is created once;
        `new_job` copies it for each call.
        """
        own = self.resolved
        return NewJob(
            id="",
            type=self.name,
            queue=own.queue,
            labels=own.labels,
            priority=own.priority,
            delay=own.delay,
            due=own.due,
            retries=own.retries,
            rate=own.rate,
            after=own.after,
            when=own.when,
            keep=own.keep,
            keep_failed=own.keep_failed,
        )

    def _meta(self, cron: str, key: str = "", fills: tuple[Fill, ...] = ()) -> bytes:
        """Return a job's encoded metadata. `key`: the job's name in its workflow run; "": it has no run. `fills`: the
        places in its arguments for results of other jobs. With a key, the metadata includes the time limit and the
        backoff of the definition: a server may lease the job to a remote worker, and neither of the two has the
        definition.
        """
        trace = trace_context()
        for layer in self.core.services.get(MIDDLEWARE):
            layer.enqueueing(self.name, trace)
            check_trace(trace, layer)
        own = self.resolved
        if not (trace or cron or key or own.own_timeout or own.own_backoff):
            return b""
        timeout, backoff = own.own_timeout, own.own_backoff
        if key:
            timeout = timeout or own.timeout
            backoff = backoff or (own.backoff if isinstance(own.backoff, Backoff) else None)
        return metadata.pack(Meta(timeout, backoff, trace, cron, key, fills))

    def new_run_job(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        raw: bytes,
        *,
        id_: str,
        run: str,
        key: str,
        fills: tuple[Fill, ...] = (),
        after: tuple[str, ...] = (),
        when: When = "all_success",
        soft: bool = False,
    ) -> NewJob:
        """Build the job for a call that is part of a workflow run. `raw`: its encoded arguments. They contain None in
        each place that `fills` names; a worker puts the result of another job there. Raises ConfigError for options
        that jobs of a run do not support.
        """
        own = self.resolved
        if own.unique is not None:
            raise ConfigError(f"job {self.name!r} is unique; jobs of a run cannot be: pass options(unique=None)")
        if own.after or own.due or own.connection is not None:
            raise ConfigError("jobs of a run do not take after=, at= or connection=; use flow.add(…, after=…)")
        concurrency = None
        if own.concurrency is not None:
            name = validation.check_key(own.concurrency.template.key(args, kwargs), "concurrency_key")
            concurrency = Concurrency(name, own.concurrency.limit)
            shard_for(self.core.services.get(JOB_STORE).shards, chain=run, concurrency=concurrency)
        return NewJob(
            id=id_,
            type=self.name,
            queue=own.queue,
            args=raw,
            meta=self._meta("", key, fills),
            labels=own.labels,
            priority=own.priority,
            delay=own.delay,
            retries=own.retries,
            concurrency=concurrency,
            rate=own.rate,
            after=after,
            when=when,
            soft=soft,
            run=run,
            keep=own.keep,
            keep_failed=own.keep_failed,
        )

    def copy_run_job(self, like: NewJob, raw: bytes, *, id_: str, key: str, fills: tuple[Fill, ...] = ()) -> NewJob:
        """Return a copy of `like`, a job of this type in the same run, for another call: with other arguments (`raw`),
        id, key (name in the run) and fills (see `new_run_job`). It equals what `new_run_job` would return. Not for a
        job with a concurrency key: that key may contain arguments, and the copy would keep the key of `like`.
        """
        return replace(like, id=id_, args=raw, meta=self._meta("", key, fills))

    def new_jobs(self, calls: Iterable[Arguments]) -> list[NewJob]:
        """Build one job for each of these calls. Raises BadArgument if an argument of one call cannot be encoded."""
        given = [_call(call) for call in calls]
        own, core = self.resolved, self.core
        if own.unique or own.concurrency or core.services.get(MIDDLEWARE) or core.services.get(JOB_STORE).shards > 1:
            return [self.new_job(args, kwargs) for args, kwargs in given]
        blank, encode, ids = (
            replace(self._prototype, meta=self._meta("")),
            self._encode_args,
            core.services.get(JOB_IDS),
        )
        made = zip(ids.new_many(0, len(given)), given, strict=True)
        return UniformBatch([replace(blank, id=id_, args=encode(*call)) for id_, call in made])


def _call(call: Arguments) -> Call:
    if isinstance(call, tuple):
        return call, {}
    if isinstance(call, list):
        return tuple(call), {}
    if isinstance(call, Mapping):
        return (), dict(call)
    raise ConfigError(
        "enqueue_many takes tuples of arguments, or dicts by name, as in [('a.png',), ('b.png',)];"
        f" got {type(call).__name__}"
    )


class JobType(BaseJobType[P, R]):
    """A job type of an async Backstay."""

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a call, which a worker will run. Raises BadArgument if an argument cannot be encoded."""
        return self._handle(await flows.enqueue(self.core, self.new_job(args, kwargs), self.resolved.connection))

    async def enqueue_many(self, calls: Iterable[Arguments]) -> list[JobHandle[R]]:
        """Enqueue many calls: tuples of arguments, or dicts by name. Up to 1,000 are stored in one transaction."""
        core, me = self.core, cast("Any", self)
        made = await flows.enqueue_many(core, self.new_jobs(calls), self.resolved.connection)
        return [JobHandle(core, me, done) for done in made]

    def _handle(self, done: Enqueued) -> JobHandle[R]:
        return JobHandle(self.core, cast("Any", self), done)


class BlockingJobType(BaseJobType[P, R]):
    """A job type of a blocking Backstay."""

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> BlockingJobHandle[R]:
        """Enqueue a call, which a worker will run. Raises BadArgument if an argument cannot be encoded."""
        return self._handle(run(flows.enqueue(self.core, self.new_job(args, kwargs), self.resolved.connection)))

    def enqueue_many(self, calls: Iterable[Arguments]) -> list[BlockingJobHandle[R]]:
        """Enqueue many calls: tuples of arguments, or dicts by name. Up to 1,000 are stored in one transaction."""
        core, me = self.core, cast("Any", self)
        made = run(flows.enqueue_many(core, self.new_jobs(calls), self.resolved.connection))
        return [BlockingJobHandle(core, me, done) for done in made]

    def _handle(self, done: Enqueued) -> BlockingJobHandle[R]:
        return BlockingJobHandle(self.core, cast("Any", self), done)


class JobDecorator(Protocol):
    """The decorator that `stay.job(...)` returns. It turns a function with the parameters P and the result type R into
    a `JobType[P, R]`; for an async function, R is the type of the awaited result.
    """

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobType[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobType[P, R]: ...


class BlockingJobDecorator(Protocol):
    """The decorator that `stay.job(...)` of a blocking Backstay returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> BlockingJobType[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> BlockingJobType[P, R]: ...
