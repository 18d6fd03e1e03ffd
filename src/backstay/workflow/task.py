"""`Task`, a job of a flow under construction, and `Output`, a placeholder for its future result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, NoReturn, TypeVar, cast

from backstay.errors import ConfigError

R = TypeVar("R")


class Output(Generic[R]):
    """Placeholder for a job's result. `output["path"]` selects a part of it. The value does not exist while the flow is
    built: using it as a value raises ConfigError.
    """

    __slots__ = ("item", "task")

    def __init__(self, task: Task[Any], item: tuple[str | int, ...] = ()) -> None:
        self.task = task
        self.item = item

    def __getitem__(self, name: str | int) -> Output[Any]:
        if isinstance(name, bool) or not isinstance(cast("object", name), (str, int)):
            raise ConfigError(f"an output is indexed by text or a number, as in output['path']; got {name!r}")
        return Output(self.task, (*self.item, name))

    def _unavailable(self) -> ConfigError:
        return ConfigError(
            f"the output of {self.task.key!r} has no value while the flow is built: pass it to flow.add(…) or"
            " flow.map(…), and use it in the job that receives it"
        )

    def __bool__(self) -> bool:
        raise self._unavailable()

    def __iter__(self) -> NoReturn:
        raise self._unavailable()

    def __format__(self, spec: str) -> str:
        raise self._unavailable()

    def __str__(self) -> str:
        raise self._unavailable()

    def __repr__(self) -> str:
        return f"<Output of {self.task.key!r}{''.join(f'[{one!r}]' for one in self.item)}>"


class Task(Generic[R]):
    """What `flow.add` and `flow.map` return: one job, or all jobs of the map. Other jobs can wait for it."""

    __slots__ = ("chains", "flow", "key", "many")

    def __init__(self, flow: object, key: str, chains: tuple[str, ...], *, many: bool = False) -> None:
        self.flow = flow
        self.key = key
        self.chains = chains
        #: True: several jobs, whose results are its output as a list.
        self.many = many

    @property
    def output(self) -> Output[R]:
        """Placeholder for the task's result, to be passed to other jobs as an argument."""
        return Output(self)

    def __repr__(self) -> str:
        return f"<Task {self.key!r}>"


After = Task[Any] | Output[Any] | Iterable["Task[Any] | Output[Any]"]
