"""A call of a job in a flow: its arguments, of which some are results of others, and all that it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from backstay.errors import ConfigError
from backstay.job.api.definition import BaseJobType
from backstay.job.metadata import Fill
from backstay.job.model import NewJob
from backstay.workflow.run import RunJob
from backstay.workflow.task import After, Output, Task

#: What `flow.add` and `flow.map` keep for themselves; a job's argument of that name goes by position.
RESERVED = ("key", "after", "when", "soft")


class Call:
    """A call with its gaps: the arguments that are results of others, and all that it waits for."""

    def __init__(
        self, flow: object, job: BaseJobType[..., Any], args: Sequence[Any], kwargs: dict[str, Any], after: After
    ) -> None:
        if not isinstance(cast("object", job), BaseJobType):
            kind = getattr(job, "__name__", type(job).__name__)
            raise ConfigError(f"a flow is made of jobs: put @stay.job above {kind!r}")
        self.job = job
        self._flow = flow
        self._tasks: dict[str, Task[Any]] = {}
        self._fills: list[Fill] = []
        self.values = {name: self._found(value, (name,)) for name, value in self._bound(args, kwargs).items()}
        self._gaps = frozenset(str(fill.place[0]) for fill in self._fills)
        if self._gaps:
            self.raw = job.codec.encode_gaps(self.values, self._gaps)
        else:
            self.raw = job.codec.encode_values(self.values)
        self.fills = tuple(self._fills)
        self._wait_for(after)
        self.tasks = list(self._tasks.values())
        #: What these are called in the run; known once it is placed there.
        self.needs: tuple[str, ...] | None = None
        #: As it was placed, where the same call with another item differs in nothing but that.
        self.placed: tuple[NewJob, RunJob] | None = None
        if len(self.tasks) == 1:
            self.chains = self.tasks[0].chains
        else:
            self.chains = tuple(dict.fromkeys(chain for task in self.tasks for chain in task.chains))

    def with_item(self, item: Any) -> bytes | None:
        """The arguments of the same call with another first one; None where that makes another call of it."""
        codec = self.job.codec
        if codec.first is None or codec.first in self._gaps or _has(item):
            return None
        values = {**self.values, codec.first: item}
        return codec.encode_gaps(values, self._gaps) if self._gaps else codec.encode_values(values)

    def _bound(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Raises TypeError, as the call itself would."""
        codec = self.job.codec
        try:
            return codec.bind(tuple(args), kwargs)
        except TypeError as error:
            if taken := [name for name in RESERVED if name in codec.signature.parameters]:
                said = f"argument {taken[0]!r} of {self.job.name} is a word of the flow's own; pass it by position"
                raise ConfigError(said) from error
            raise

    def _found(self, value: Any, place: tuple[str | int, ...]) -> Any:
        """A value with None where a result of another goes."""
        if isinstance(value, Output):
            output = cast("Output[object]", value)
            self._join(output.task)
            self._fills.append(Fill(place, output.task.chains, output.task.many, output.item))
            return None
        if isinstance(value, Task):
            task = cast("Task[object]", value)
            raise ConfigError(f"{task.key!r} itself cannot be passed on; pass its .output, or put it in after=")
        if isinstance(value, dict):
            table = cast("dict[str, Any]", value)
            return {name: self._found(one, (*place, name)) for name, one in table.items()} if _has(table) else table
        if isinstance(value, (list, tuple)):
            many = cast("Sequence[Any]", value)
            return [self._found(one, (*place, at)) for at, one in enumerate(many)] if _has(many) else many
        return value

    def _wait_for(self, after: Any) -> None:
        given: list[Any] = [after] if isinstance(after, (Task, Output)) else []
        if not given and not isinstance(after, (Task, Output)):
            if isinstance(after, str) or not isinstance(after, Iterable):
                raise ConfigError(f"after= takes what flow.add and flow.map answer; got {type(after).__name__}")
            many = cast("Iterable[object]", after)
            given = list(many)
        for one in given:
            if isinstance(one, Output):
                output = cast("Output[object]", one)
                self._join(output.task)
            elif isinstance(one, Task):
                task = cast("Task[object]", one)
                self._join(task)
            else:
                raise ConfigError(f"after= takes what flow.add and flow.map answer; got {type(one).__name__}")

    def _join(self, task: Task[Any]) -> None:
        if task.flow is not self._flow:
            raise ConfigError(f"{task.key!r} belongs to another run")
        self._tasks[task.key] = task


def _has(value: Any) -> bool:
    """Whether there is an output, or a task by mistake, somewhere in it."""
    if isinstance(value, (Output, Task)):
        return True
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return any(_has(one) for one in table.values())
    return isinstance(value, (list, tuple)) and any(_has(one) for one in cast("Sequence[Any]", value))
