"""What a flow hands out: a job of a run to be, and the value that it will have returned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, NoReturn, TypeVar, cast

from backstay.errors import ConfigError

R = TypeVar("R")


class Output(Generic[R]):
    """What a job will have returned. `output["path"]` is a part of it. It stands for a value that nobody has yet."""

    __slots__ = ("item", "task")

    def __init__(self, task: Task[Any], item: tuple[str | int, ...] = ()) -> None:
        self.task = task
        self.item = item

    def __getitem__(self, name: str | int) -> Output[Any]:
        if isinstance(name, bool) or not isinstance(cast("object", name), (str, int)):
            raise ConfigError(f"a part of an output is named by text or a number, as in output['path']; got {name!r}")
        return Output(self.task, (*self.item, name))

    def _unknown(self) -> ConfigError:
        return ConfigError(
            f"the output of {self.task.key!r} is not known yet: pass it to flow.add(…) or flow.map(…), and look at it"
            " in the job that gets it"
        )

    def __bool__(self) -> bool:
        raise self._unknown()

    def __iter__(self) -> NoReturn:
        raise self._unknown()

    def __format__(self, spec: str) -> str:
        raise self._unknown()

    def __str__(self) -> str:
        raise self._unknown()

    def __repr__(self) -> str:
        return f"<Output of {self.task.key!r}{''.join(f'[{one!r}]' for one in self.item)}>"


class Task(Generic[R]):
    """A job of a flow, or several that are one thing to wait for."""

    __slots__ = ("chains", "flow", "key", "many")

    def __init__(self, flow: object, key: str, chains: tuple[str, ...], *, many: bool = False) -> None:
        self.flow = flow
        self.key = key
        self.chains = chains
        #: True: its output is the list of theirs.
        self.many = many

    @property
    def output(self) -> Output[R]:
        """What it will have returned: to be passed to another job."""
        return Output(self)

    def __repr__(self) -> str:
        return f"<Task {self.key!r}>"


After = Task[Any] | Output[Any] | Iterable["Task[Any] | Output[Any]"]
