"""The job API of the async and the blocking Backstay: `job`, `jobs`, `queues`, `scheduler`, `transaction`, `use`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from backstay.errors import ConfigError
from backstay.job.api.blocking import BlockingJobs, BlockingQueues
from backstay.job.api.definition import BlockingDecorator, BlockingJobType, Decorator, JobType
from backstay.job.api.jobs import Jobs
from backstay.job.api.middleware import MIDDLEWARE, Middleware
from backstay.job.api.options import Definition
from backstay.job.api.queues import Queues
from backstay.job.api.transaction import AsyncTransaction, Transaction
from backstay.job.scheduler.pruner import KEEP
from backstay.job.scheduler.scheduler import BlockingScheduler, Scheduler
from backstay.runtime import validation
from backstay.runtime.core import Core

P = ParamSpec("P")
R = TypeVar("R")


class BaseJobsMixin:
    """The part shared by the async and the blocking API."""

    _core: Core

    def use(self, middleware: Middleware) -> None:
        """Add middleware around every job that this Backstay enqueues or runs. The first one added is outermost."""
        if not isinstance(middleware, Middleware):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise ConfigError("stay.use takes a Middleware: class Mine(backstay.Middleware): …; stay.use(Mine())")
        self._core.services.get(MIDDLEWARE).append(middleware)


class JobsMixin(BaseJobsMixin):
    """The job API of an async Backstay."""

    @property
    def jobs(self) -> Jobs:
        """Inspect, retry, cancel and purge jobs; enqueue by name."""
        return Jobs(self._core)

    @property
    def queues(self) -> Queues:
        """Inspect, pause, resume, rate-limit and drain queues."""
        return Queues(self._core)

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobType[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> JobType[P, R]: ...
    @overload
    def job(self, /, **options: Unpack[Definition]) -> Decorator: ...
    def job(self, function: Callable[..., Any] | None = None, /, **options: Unpack[Definition]) -> Any:
        """Define a job: `@stay.job(queue="default", retries=5, timeout=60)`. A function that is not async runs in a
        thread of the worker.

        queue, labels: which workers run it. retries, backoff, timeout: attempts after the first (3), seconds between
        them, seconds for each. priority: a higher one starts sooner. concurrency_key, concurrency: how many jobs with
        the same key run at once. rate, burst: how many start per time. unique, unique_scope, unique_window: one job per
        key. cron, timezone, catch_up: when it is enqueued automatically. keep, keep_failed: seconds its record is kept.
        pool: "thread" or "process". name, payload_limit, result_limit.
        """

        def decorate(function: Callable[..., Any]) -> JobType[..., Any]:
            return JobType[..., Any](self._core, function, options)

        return decorate if function is None else decorate(function)

    def scheduler(self, *, keep: int = KEEP) -> Scheduler:
        """Return a scheduler, which runs cron and pruning without a worker (workers do both too). keep: the most
        completed jobs to keep.
        """
        return Scheduler(self._core, validation.check_count(keep, "keep"))

    def transaction(self, connection: Any) -> AsyncTransaction:
        """Open a transaction on your own SQL connection for the duration of a block. Jobs enqueued inside with
        `resize.options(connection=conn).enqueue(…)` are part of it and are announced to workers after the commit.

        connection: of sqlite3, psycopg, SQLAlchemy or Django, to the database that stores the jobs. Inside the block,
        on SQLite, every other call of this Backstay raises WouldDeadlock: it would wait for your commit.
        """
        return AsyncTransaction(self._core, connection)


class BlockingJobsMixin(BaseJobsMixin):
    """The job API of a blocking Backstay."""

    @property
    def jobs(self) -> BlockingJobs:
        """Inspect, retry, cancel and purge jobs; enqueue by name."""
        return BlockingJobs(self._core)

    @property
    def queues(self) -> BlockingQueues:
        """Inspect, pause, resume, rate-limit and drain queues."""
        return BlockingQueues(self._core)

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> BlockingJobType[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> BlockingJobType[P, R]: ...
    @overload
    def job(self, /, **options: Unpack[Definition]) -> BlockingDecorator: ...
    def job(self, function: Callable[..., Any] | None = None, /, **options: Unpack[Definition]) -> Any:
        """Define a job: `@stay.job(queue="default", retries=5, timeout=60)`. The options are those of the async API;
        async functions run on the worker's event loop.
        """

        def decorate(function: Callable[..., Any]) -> BlockingJobType[..., Any]:
            return BlockingJobType[..., Any](self._core, function, options)

        return decorate if function is None else decorate(function)

    def scheduler(self, *, keep: int = KEEP) -> BlockingScheduler:
        """Return a scheduler, which runs cron and pruning without a worker (workers do both too). keep: the most
        completed jobs to keep.
        """
        return BlockingScheduler(self._core, validation.check_count(keep, "keep"))

    def transaction(self, connection: Any) -> Transaction:
        """Open a transaction on your own SQL connection for the duration of a block. Jobs enqueued inside with
        `resize.options(connection=conn).enqueue(…)` are part of it and are announced to workers after the commit.

        connection: of sqlite3, psycopg, SQLAlchemy or Django, to the database that stores the jobs. Inside the block,
        on SQLite, every other call of this Backstay raises WouldDeadlock: it would wait for your commit.
        """
        return Transaction(self._core, connection)
