"""`stay.worker(...)`: create a worker of an async Backstay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from backstay.errors import ConfigError
from backstay.job.scheduler.pruner import KEEP
from backstay.job.worker.slots import Queues
from backstay.job.worker.worker import CONCURRENCY, Worker
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration, to_seconds


class WorkerMixin:
    """Worker methods of the async `Backstay`."""

    _core: Core

    def worker(
        self,
        *,
        queues: Queues = ("default",),
        labels: Iterable[str] = (),
        concurrency: int = CONCURRENCY,
        lease: Duration = 30,
        drain: Duration = 30,
        grace: Duration = 5,
        blocked_after: Duration = 1,
        prefetch: bool = True,
        signals: bool = True,
        name: str = "",
        keep: int = KEEP,
        allow_commands: bool = False,
        pass_env: Iterable[str] = (),
        secrets: Iterable[str] | Mapping[str, str] = (),
        directory: str | Path = ".",
        artifacts: str | Path = "",
    ) -> Worker:
        """Create a worker: `await stay.worker(queues=["default"], concurrency=100).run()`.

        queues: names, whose jobs are claimed together by priority and age; or weights, {"mail": 3, "default": 1}.
        labels: the labels of this worker; it claims only jobs whose labels it has. concurrency: jobs at the same time.
        lease: seconds until other workers get its jobs if it dies; renewed while it lives. drain: seconds that a stop
        waits for running jobs. grace: seconds a handler has to end after it is asked to stop. blocked_after: warn when
        the event loop is blocked for this many seconds (0: never). prefetch: while jobs end within milliseconds, claim
        the next ones before a slot is free, where that helps (PostgreSQL); jobs that have not started within 50 ms are
        returned. signals: SIGTERM and Ctrl-C stop the worker, unless the program handles them itself. name: the
        worker's name, unique among workers; generated if empty. keep: limit of completed jobs that are kept, whatever
        their own `keep=` is; among several workers, the smallest limit applies.

        allow_commands: also run commands of workflows, with the worker's user, in `directory`. pass_env: variables of
        the worker's environment that commands get, besides a few harmless ones; patterns contain `*`. secrets:
        variables that commands get and whose values are masked in logs: names, or a mapping with values. artifacts: a
        directory for the commands' files, shared by all workers that need them; without it, the engine stores them.
        """
        from backstay.workflow.planning import internal_jobs  # imported here: programs without a worker skip the cost

        internal_jobs.install(self._core)
        if allow_commands:
            from backstay.workflow.command.environment import build_command_environment
            from backstay.workflow.command.job_type import install

            ending = to_seconds(grace, "grace", zero=True)
            install(self._core, build_command_environment(pass_env, secrets, directory, ending, artifacts))
        elif tuple(pass_env) or tuple(secrets):
            raise ConfigError("pass_env= and secrets= apply to commands only: pass allow_commands=True as well")
        return Worker(
            self._core,
            queues=queues,
            labels=labels,
            concurrency=concurrency,
            lease=lease,
            drain=drain,
            grace=grace,
            blocked_after=blocked_after,
            prefetch=prefetch,
            signals=signals,
            name=name,
            allow_commands=allow_commands,
            keep=keep,
        )
