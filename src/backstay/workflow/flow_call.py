"""`FlowCall`: the arguments of one job in a flow, which may be outputs of other tasks, and the job's dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from backstay.errors import ConfigError
from backstay.job.api.definition import BaseJobType
from backstay.job.metadata import Fill
from backstay.job.model import NewJob
from backstay.workflow.run import RunJob
from backstay.workflow.task import After, Output, Task

#: Options of `flow.add` and `flow.map`. If a job's function has a parameter of the same name, pass it by position.
RESERVED = ("key", "after", "when", "soft")


class FlowCall:
    """One call of a job in a flow. An argument may be the output of another task, that is, of a job or a map that
    was added before. Such an argument has no value yet: it is encoded as a gap, and `fills` tells the worker which
    result to insert there.
    """

    def __init__(
        self, flow: object, job: BaseJobType[..., Any], args: Sequence[Any], kwargs: dict[str, Any], after: After
    ) -> None:
        if not isinstance(cast("object", job), BaseJobType):
            kind = getattr(job, "__name__", type(job).__name__)
            raise ConfigError(f"a flow consists of jobs: decorate {kind!r} with @stay.job")
        self.job = job
        self._flow = flow
        self._tasks: dict[str, Task[Any]] = {}
        self._fills: list[Fill] = []
        self.values = {name: self._extract_outputs(value, (name,)) for name, value in self._bind(args, kwargs).items()}
        self._gaps = frozenset(str(fill.place[0]) for fill in self._fills)
        if self._gaps:
            self.raw = job.codec.encode_gaps(self.values, self._gaps)
        else:
            self.raw = job.codec.encode_values(self.values)
        self.fills = tuple(self._fills)
        self._add_dependencies(after)
        self.tasks = list(self._tasks.values())
        #: Keys of the jobs that the called job waits for; None until the job is added to the run.
        self.needs: tuple[str, ...] | None = None
        #: In a map: an added job and its document entry, if the jobs of the next items differ from it only in the item.
        self.template: tuple[NewJob, RunJob] | None = None
        if len(self.tasks) == 1:
            self.chains = self.tasks[0].chains
        else:
            self.chains = tuple(dict.fromkeys(chain for task in self.tasks for chain in task.chains))

    def encode_with_item(self, item: Any) -> bytes | None:
        """For a map, which adds the same job once per item: encode the arguments of this call with `item` as the first
        argument. Returns None if that is not possible, for example because the item contains an output of a task; the
        caller then makes a new FlowCall.
        """
        codec = self.job.codec
        if codec.first is None or codec.first in self._gaps or _contains_output(item):
            return None
        values = {**self.values, codec.first: item}
        return codec.encode_gaps(values, self._gaps) if self._gaps else codec.encode_values(values)

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Bind the arguments to parameter names. Raises TypeError, as the call itself would."""
        codec = self.job.codec
        try:
            return codec.bind(tuple(args), kwargs)
        except TypeError as error:
            if taken := [name for name in RESERVED if name in codec.signature.parameters]:
                message = (
                    f"parameter {taken[0]!r} of {self.job.name} has the name of a flow option; pass it by position"
                )
                raise ConfigError(message) from error
            raise

    def _extract_outputs(self, value: Any, place: tuple[str | int, ...]) -> Any:
        """Return the value with None in place of each output, and record the outputs in `_fills`."""
        if isinstance(value, Output):
            output = cast("Output[object]", value)
            self._depend_on(output.task)
            self._fills.append(Fill(place, output.task.chains, output.task.many, output.item))
            return None
        if isinstance(value, Task):
            task = cast("Task[object]", value)
            raise ConfigError(f"task {task.key!r} cannot be an argument; pass its .output, or pass it in after=")
        if isinstance(value, dict):
            table = cast("dict[str, Any]", value)
            return (
                {name: self._extract_outputs(one, (*place, name)) for name, one in table.items()}
                if _contains_output(table)
                else table
            )
        if isinstance(value, (list, tuple)):
            many = cast("Sequence[Any]", value)
            return (
                [self._extract_outputs(one, (*place, at)) for at, one in enumerate(many)]
                if _contains_output(many)
                else many
            )
        return value

    def _add_dependencies(self, after: Any) -> None:
        given: list[Any] = [after] if isinstance(after, (Task, Output)) else []
        if not given and not isinstance(after, (Task, Output)):
            if isinstance(after, str) or not isinstance(after, Iterable):
                raise ConfigError(
                    f"after= takes tasks, as flow.add and flow.map return them; got {type(after).__name__}"
                )
            many = cast("Iterable[object]", after)
            given = list(many)
        for one in given:
            if isinstance(one, Output):
                output = cast("Output[object]", one)
                self._depend_on(output.task)
            elif isinstance(one, Task):
                task = cast("Task[object]", one)
                self._depend_on(task)
            else:
                raise ConfigError(f"after= takes tasks, as flow.add and flow.map return them; got {type(one).__name__}")

    def _depend_on(self, task: Task[Any]) -> None:
        if task.flow is not self._flow:
            raise ConfigError(f"task {task.key!r} belongs to the flow of another run")
        self._tasks[task.key] = task


def _contains_output(value: Any) -> bool:
    """Whether a value is or contains an `Output`, at any depth. Also true for a `Task`, which the caller rejects."""
    if isinstance(value, (Output, Task)):
        return True
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return any(_contains_output(one) for one in table.values())
    return isinstance(value, (list, tuple)) and any(_contains_output(one) for one in cast("Sequence[Any]", value))
