"""`stay.worker(...)`: how an async Backstay makes a worker, and what may be said about one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from backstay.errors import ConfigError
from backstay.job.scheduler.scheduler import KEEP
from backstay.job.worker.slots import Queues
from backstay.job.worker.worker import CONCURRENCY, Worker
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration
from backstay.runtime.validation import seconds as seconds_of


class WorkerDoor:
    """The door of an async Backstay to its workers."""

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
        """Somebody who runs jobs: `await stay.worker(queues=["default"], concurrency=100).run()`.

        queues: names, best first by priority and age over all of them; or weights, {"mail": 3, "default": 1}.
        labels: what this worker has; it takes jobs that ask for nothing else. concurrency: how many at once.
        lease: seconds until its jobs go to others when it dies; renewed while it lives. drain: seconds that a stop
        waits for what runs. grace: seconds a handler has to end once it is told to. blocked_after: warn when the event
        loop stands still for so long (0: never). prefetch: while jobs end within milliseconds, take the next ones
        before there is room, where that helps (PostgreSQL); what has not begun within 50 ms goes back. signals: SIGTERM
        and Ctrl-C stop it, unless the program hears them itself. name: what it is called; made up unless given, and
        never to be shared. keep: completed jobs that stay at most, whatever their own `keep=` says; whoever keeps the
        fewest decides.

        allow_commands: it also runs commands of workflows, as the user and in the `directory` it was started in.
        pass_env: variables of its own that they get, beside a few that betray nothing; patterns have a `*`. secrets:
        variables that they get and that are hidden in logs, by name or with their values. artifacts: a directory for
        the files that they leave, shared by all who need them; else the engine keeps them.
        """
        from backstay.workflow.planning import decide  # programs without a worker do without

        decide.install(self._core)
        if allow_commands:
            from backstay.workflow.command.environment import surroundings
            from backstay.workflow.command.job_type import install

            ending = seconds_of(grace, "grace", zero=True)
            install(self._core, surroundings(pass_env, secrets, directory, ending, artifacts))
        elif tuple(pass_env) or tuple(secrets):
            raise ConfigError("pass_env= and secrets= are for commands: pass allow_commands=True as well")
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
