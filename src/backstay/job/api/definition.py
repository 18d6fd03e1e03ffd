"""`@stay.job(...)`: a function whose calls can be enqueued, with the types of its own signature."""

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
from backstay.job.api.middleware import check_trace
from backstay.job.api.options import CallOptions, CatchUp, Definition, Options, Plan, Pool, plan
from backstay.job.api.registry import ids_of, middleware_of, register, store_of
from backstay.job.api.retry import AnyBackoff, Backoff
from backstay.job.metadata import Fill, Meta, trace_context
from backstay.job.model import Alike, Concurrency, Enqueued, NewJob, Unique, When
from backstay.job.scheduler.cron import cron
from backstay.job.sharding import home_of
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS = frozenset(Options.__annotations__)
_CALL = frozenset(CallOptions.__annotations__) | _OPTIONS
_DEFINITION = frozenset(Definition.__annotations__) | _OPTIONS

#: A call's arguments in bulk: positional ones, or ones by name.
Arguments = Sequence[Any] | Mapping[str, Any]


class BaseJobType(Generic[P, R]):
    """What both APIs share. Calling it calls the function, here and now."""

    def __init__(self, core: Core, function: Callable[P, Any], given: Definition) -> None:
        self.core = core
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        if not inspect.isroutine(cast("object", function)):
            raise ConfigError("@stay.job goes above a function")
        own = cast("dict[str, Any]", given)
        self.name: str = validation.word(own.get("name") or str(getattr(function, "__name__", "")), "name")
        self.pool: Pool = own.get("pool", "thread")
        if self.pool not in get_args(Pool) or (self.is_async and "pool" in own):
            raise ConfigError(f"pool of {self.name!r} is 'thread' or 'process', for functions that are not async")
        self.codec = JobCodec(
            self.name,
            function,
            validation.count(own.get("payload_limit", PAYLOAD_LIMIT), "payload_limit"),
            validation.count(own.get("result_limit", RESULT_LIMIT), "result_limit"),
        )
        extras = _DEFINITION - _OPTIONS
        if unknown := sorted(set(own) - _DEFINITION):
            raise ConfigError(
                f"{', '.join(unknown)}: no such option of a job; there are {', '.join(sorted(_DEFINITION))}"
            )
        options = {option: value for option, value in own.items() if option not in extras}
        self.plan = plan(Plan(), options, self.name, function, call=False, allowed=_OPTIONS)
        self.cron: str | None = own.get("cron")
        self.timezone: str = own.get("timezone", "UTC")
        self.catch_up: CatchUp = own.get("catch_up", "one")
        self._check_cron()
        functools.update_wrapper(cast("Callable[..., Any]", self), function)
        self._register()

    def _check_cron(self) -> None:
        if self.catch_up not in get_args(CatchUp):
            raise ConfigError(f"catch_up is one of {', '.join(get_args(CatchUp))}; got {self.catch_up!r}")
        if self.cron is None:
            return
        cron(self.cron, self.timezone)
        if needed := self.codec.required:
            raise ConfigError(
                f"job {self.name!r} starts by itself, so nobody passes {', '.join(needed)}; give each a default"
            )

    def _register(self) -> None:
        register(self.core, self)

    def _encoded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self.codec.encode_args(args, kwargs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def queue(self) -> str:
        return self.plan.queue

    @property
    def labels(self) -> tuple[str, ...]:
        return self.plan.labels

    @property
    def priority(self) -> int:
        return self.plan.priority

    @property
    def retries(self) -> int:
        return self.plan.retries

    @property
    def backoff(self) -> AnyBackoff:
        return self.plan.backoff

    @property
    def timeout(self) -> float:
        """Seconds an attempt may take; 0: any time."""
        return self.plan.timeout

    def decode_args(self, raw: bytes) -> Call:
        """What to call the function with. Raises BadArgument."""
        return self.codec.decode_args(raw)

    def encode_result(self, value: R) -> bytes:
        """Raises BadResult, PayloadTooLarge."""
        return self.codec.encode_result(value)

    def decode_result(self, raw: bytes) -> R:
        return cast("R", self.codec.decode_result(raw))

    def options(self, **changes: Unpack[CallOptions]) -> Self:
        """The same job with other options, for the calls that follow: `resize.options(delay=10).enqueue("a.png")`.

        What there is: queue, retries, backoff, timeout, priority, labels, concurrency_key, concurrency, rate, burst,
        unique, unique_scope, unique_window, keep, keep_failed; for calls alone delay or at, after, when, connection.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        given = cast("dict[str, Any]", changes)
        twin.plan = plan(self.plan, given, self.name, self.function, call=True, allowed=_CALL)
        twin.__dict__.pop("_blank", None)
        return twin

    def new_job(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, chain: str = "", due: int = 0, cron: str = ""
    ) -> NewJob:
        """A call as it is stored. `chain`: the one that it carries on."""
        own, core = self.plan, self.core
        raw = self._encoded(args, kwargs)
        unique = concurrency = None
        if own.unique is not None:
            key = validation.key(own.unique.template.key(args, kwargs), "unique")
            unique = Unique(key, own.unique.scope, own.unique.window)
        if own.concurrency is not None:
            key = validation.key(own.concurrency.template.key(args, kwargs), "concurrency_key")
            concurrency = Concurrency(key, own.concurrency.limit)
        shards = store_of(core).shards
        if shards == 1:
            id_ = ids_of(core).new(0)
        else:
            place = home_of(shards, chain=chain, concurrency=concurrency, unique=unique, after=own.after)
            id_ = ids_of(core).anywhere(shards) if place is None else ids_of(core).new(place)
        job = replace(self._blank, id=id_, args=raw, meta=self._meta(cron))
        if unique is None and concurrency is None and not chain and not due:
            return job
        return replace(job, unique=unique, concurrency=concurrency, chain=chain, due=due or own.due)

    @functools.cached_property
    def _blank(self) -> NewJob:
        """A call as it is stored, but for what is its own: most calls differ in nothing else."""
        own = self.plan
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
        """What travels with a job. One of a run takes its time limit and back-off along, as the run was written: it may
        be handed out by a server that does not know this definition.
        """
        trace = trace_context()
        for layer in middleware_of(self.core):
            layer.enqueueing(self.name, trace)
            check_trace(trace, layer)
        own = self.plan
        if not (trace or cron or key or own.own_timeout or own.own_backoff):
            return b""
        timeout, backoff = own.own_timeout, own.own_backoff
        if key:
            timeout = timeout or own.timeout
            backoff = backoff or (own.backoff if isinstance(own.backoff, Backoff) else None)
        return metadata.pack(Meta(timeout, backoff, trace, cron, key, fills))

    def member(
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
        """A call as part of a workflow run: `raw` are its arguments with gaps where others' results go. Raises
        ConfigError for options that a run cannot keep.
        """
        own = self.plan
        if own.unique is not None:
            raise ConfigError(f"job {self.name!r} is unique, which jobs of a run cannot be; pass options(unique=None)")
        if own.after or own.due or own.connection is not None:
            raise ConfigError("after=, at= and connection= are not for jobs of a run; flow.add(…, after=…) orders them")
        concurrency = None
        if own.concurrency is not None:
            name = validation.key(own.concurrency.template.key(args, kwargs), "concurrency_key")
            concurrency = Concurrency(name, own.concurrency.limit)
            home_of(store_of(self.core).shards, chain=run, concurrency=concurrency)
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

    def another(self, like: NewJob, raw: bytes, *, id_: str, key: str, fills: tuple[Fill, ...] = ()) -> NewJob:
        """What `member` makes of a call that differs from an earlier one in its arguments and its key alone; not for
        one with a concurrency key, which is made of arguments.
        """
        return replace(like, id=id_, args=raw, meta=self._meta("", key, fills))

    def new_jobs(self, calls: Iterable[Arguments]) -> list[NewJob]:
        """Many calls, all of them or none."""
        given = [_call(call) for call in calls]
        own, core = self.plan, self.core
        if own.unique or own.concurrency or middleware_of(core) or store_of(core).shards > 1:
            return [self.new_job(args, kwargs) for args, kwargs in given]
        blank, encode, ids = replace(self._blank, meta=self._meta("")), self._encoded, ids_of(core)
        made = zip(ids.several(0, len(given)), given, strict=True)
        return Alike([replace(blank, id=id_, args=encode(*call)) for id_, call in made])


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
    """A job of an async Backstay."""

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Have it done by a worker. Raises BadArgument when an argument cannot be carried there."""
        return self._handle(await flows.enqueue(self.core, self.new_job(args, kwargs), self.plan.connection))

    async def enqueue_many(self, calls: Iterable[Arguments]) -> list[JobHandle[R]]:
        """Many calls at once: tuples of arguments, or dicts by name. Up to 1,000 are stored in one step."""
        core, me = self.core, cast("Any", self)
        made = await flows.enqueue_many(core, self.new_jobs(calls), self.plan.connection)
        return [JobHandle(core, me, done) for done in made]

    def _handle(self, done: Enqueued) -> JobHandle[R]:
        return JobHandle(self.core, cast("Any", self), done)


class BlockingJobType(BaseJobType[P, R]):
    """A job of a blocking Backstay."""

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> BlockingJobHandle[R]:
        """Have it done by a worker. Raises BadArgument when an argument cannot be carried there."""
        return self._handle(run(flows.enqueue(self.core, self.new_job(args, kwargs), self.plan.connection)))

    def enqueue_many(self, calls: Iterable[Arguments]) -> list[BlockingJobHandle[R]]:
        """Many calls at once: tuples of arguments, or dicts by name. Up to 1,000 are stored in one step."""
        core, me = self.core, cast("Any", self)
        made = run(flows.enqueue_many(core, self.new_jobs(calls), self.plan.connection))
        return [BlockingJobHandle(core, me, done) for done in made]

    def _handle(self, done: Enqueued) -> BlockingJobHandle[R]:
        return BlockingJobHandle(self.core, cast("Any", self), done)


class Decorator(Protocol):
    """What `stay.job(...)` answers: a job has its function's arguments and what it returns or, if async, answers."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobType[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobType[P, R]: ...


class BlockingDecorator(Protocol):
    """The same for a blocking Backstay."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> BlockingJobType[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> BlockingJobType[P, R]: ...
