"""What both Backstays offer for jobs by the same names."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from backstay.errors import ConfigError
from backstay.job.api.definition import BlockingDecorator, BlockingJobType, Decorator, JobType
from backstay.job.api.jobs import BlockingJobs, BlockingQueues, Jobs, Queues
from backstay.job.api.middleware import Middleware
from backstay.job.api.options import Definition
from backstay.job.api.transaction import AsyncTransaction, Transaction
from backstay.job.scheduler.scheduler import KEEP, BlockingScheduler, Scheduler
from backstay.runtime import validation
from backstay.runtime.core import Core

P = ParamSpec("P")
R = TypeVar("R")


class BaseJobDoor:
    """What needs no waiting."""

    _core: Core

    def use(self, middleware: Middleware) -> None:
        """Put something around every job that this Backstay enqueues or runs. The first one used is the outermost."""
        if not isinstance(middleware, Middleware):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise ConfigError("stay.use takes a Middleware: class Mine(backstay.Middleware): …; stay.use(Mine())")
        self._core.middleware.append(middleware)


class JobDoor(BaseJobDoor):
    """The doors of an async Backstay to its jobs."""

    @property
    def jobs(self) -> Jobs:
        """Look at jobs, retry, cancel, purge; enqueue by name."""
        return Jobs(self._core)

    @property
    def queues(self) -> Queues:
        """Look at queues; pause, resume, limit, drain them."""
        return Queues(self._core)

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobType[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> JobType[P, R]: ...
    @overload
    def job(self, /, **options: Unpack[Definition]) -> Decorator: ...
    def job(self, function: Callable[..., Any] | None = None, /, **options: Unpack[Definition]) -> Any:
        """Make a function a job: `@stay.job(queue="default", retries=5, timeout=60)`. A plain function runs
        in a worker's thread.

        queue, labels: which workers take it. retries, backoff, timeout: attempts after the first (3), seconds between
        them, seconds for each. priority: more is sooner. concurrency_key, concurrency: how many of a key run at once.
        rate, burst: how many start in a time. unique, unique_scope, unique_window: one job for a key. cron, timezone,
        catch_up: when it starts by itself. keep, keep_failed: seconds its record stays. pool: "thread" or "process".
        name, payload_limit, result_limit.
        """

        def decorate(function: Callable[..., Any]) -> JobType[..., Any]:
            return JobType[..., Any](self._core, function, options)

        return decorate if function is None else decorate(function)

    def scheduler(self, *, keep: int = KEEP) -> Scheduler:
        """Cron and pruning without a worker, which does both as well. keep: completed jobs that stay at most."""
        return Scheduler(self._core, validation.count(keep, "keep"))

    def transaction(self, connection: Any) -> AsyncTransaction:
        """A block that is one transaction on your own SQL connection, with jobs in it: they are enqueued with
        `resize.options(connection=conn).enqueue(…)`, and workers hear of them once it is committed.

        connection: of sqlite3, psycopg, SQLAlchemy or Django, to the database in which the jobs are kept. Inside, on
        SQLite, every other call of this Backstay raises WouldDeadlock: it would wait for your commit.
        """
        return AsyncTransaction(self._core, connection)


class BlockingJobDoor(BaseJobDoor):
    """The doors of a blocking Backstay to its jobs."""

    @property
    def jobs(self) -> BlockingJobs:
        """Look at jobs, retry, cancel, purge; enqueue by name."""
        return BlockingJobs(self._core)

    @property
    def queues(self) -> BlockingQueues:
        """Look at queues; pause, resume, limit, drain them."""
        return BlockingQueues(self._core)

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> BlockingJobType[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> BlockingJobType[P, R]: ...
    @overload
    def job(self, /, **options: Unpack[Definition]) -> BlockingDecorator: ...
    def job(self, function: Callable[..., Any] | None = None, /, **options: Unpack[Definition]) -> Any:
        """Make a function a job: `@stay.job(queue="default", retries=5, timeout=60)`. The options are those of the
        async API; async functions run on the worker's event loop.
        """

        def decorate(function: Callable[..., Any]) -> BlockingJobType[..., Any]:
            return BlockingJobType[..., Any](self._core, function, options)

        return decorate if function is None else decorate(function)

    def scheduler(self, *, keep: int = KEEP) -> BlockingScheduler:
        """Cron and pruning without a worker, which does both as well. keep: completed jobs that stay at most."""
        return BlockingScheduler(self._core, validation.count(keep, "keep"))

    def transaction(self, connection: Any) -> Transaction:
        """A block that is one transaction on your own SQL connection, with jobs in it: they are enqueued with
        `resize.options(connection=conn).enqueue(…)`, and workers hear of them once it is committed.

        connection: of sqlite3, psycopg, SQLAlchemy or Django, to the database in which the jobs are kept. Inside, on
        SQLite, every other call of this Backstay raises WouldDeadlock: it would wait for your commit.
        """
        return Transaction(self._core, connection)
