"""`@stay.workflow`: a workflow that a Python function builds; its `start` starts a run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, cast

from backstay.errors import BadInput, ConfigError
from backstay.job.ids import with_shard
from backstay.job.run_model import NewRun, Run
from backstay.job.sharding import CrossShardKey
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run as do
from backstay.runtime.validation import Duration, to_micros
from backstay.workflow import flows
from backstay.workflow.api.blocking import BlockingRunHandle
from backstay.workflow.api.handle import RunHandle
from backstay.workflow.api.mixin import WORKFLOWS
from backstay.workflow.builder import Flow
from backstay.workflow.definition import Input, Workflow
from backstay.workflow.run import RunDoc, pack_doc

P = ParamSpec("P")

#: Seconds a run's record is kept after its end: a week.
KEEP = 7 * 86400.0


class BaseWorkflowType(Generic[P]):
    """A workflow defined by a function: base of the async and the blocking class."""

    def __init__(
        self,
        core: Core,
        function: Callable[Concatenate[Flow, P], Any],
        *,
        name: str = "",
        timeout: Duration | None = None,
        keep: Duration = KEEP,
    ) -> None:
        if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
            raise ConfigError("@stay.workflow needs a function that is not async: it builds a run, and awaits nothing")
        self.core = core
        self.function = function
        self.name = validation.check_name(name or function.__name__, "name")
        self._timeout = 0.0 if timeout is None else validation.to_seconds(timeout, "timeout")
        self._keep = validation.to_seconds(keep, "keep", zero=True)
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise ConfigError(
                f"workflow {self.name!r} must take the flow as its first parameter: def {function.__name__}(flow, …)"
            )
        self._signature = inspect.Signature(parameters[1:])
        self._version: int | None = None
        if core.services.get(WORKFLOWS).setdefault(self.name, self) is not self:
            raise ConfigError(f"two workflows are named {self.name!r}; give one of them name=")
        functools.update_wrapper(cast("Callable[..., Any]", self), function)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def definition(self) -> Workflow:
        """The workflow definition to be stored: the function's inputs, and the digest of its code, so that a changed
        function is stored as a new version.
        """
        taken = {
            name: Input(required=one.default is one.empty, default=_plain_default(one.default))
            for name, one in self._signature.parameters.items()
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        }
        return Workflow(
            name=self.name,
            source="python",
            inputs=taken,
            timeout=self._timeout,
            function=f"{self.function.__module__}.{self.function.__qualname__}",
            code=_code_digest(self.function),
        )

    def build(self, *args: P.args, **kwargs: P.kwargs) -> NewRun:
        """Build a run without starting it. Raises BadInput for arguments that the function does not take."""
        return self._build(args, dict(kwargs), 0, "manual")

    def _build(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], version: int, trigger: str, run_id: str = ""
    ) -> NewRun:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadInput(workflow=self.name, reason=str(error)) from error
        bound.apply_defaults()
        values = flows.to_plain_inputs(bound.arguments)
        flow = Flow(self.core, self.name, values, run_id)
        try:
            self.function(flow, *bound.args, **bound.kwargs)
        except CrossShardKey as error:
            # All jobs of a run are in one shard, and a concurrency key of its jobs belongs to another shard: build the
            # run again in that shard. Two keys of different shards cannot be in one run.
            flow = Flow(self.core, self.name, values, with_shard(flow.run_id, error.shard))
            self.function(flow, *bound.args, **bound.kwargs)
        doc = RunDoc(workflow=self.name, inputs=values, jobs=tuple(flow.doc), trigger=trigger)
        return NewRun(
            id=flow.run_id,
            workflow=self.name,
            version=version,
            doc=pack_doc(doc),
            jobs=tuple(flow.jobs),
            timeout=to_micros(self._timeout) if self._timeout else 0,
            keep=to_micros(self._keep),
        )

    async def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], trigger: str, run_id: str = "") -> Run:
        """Start a run. If the function raises, its exception propagates and nothing is started."""
        self.core.check_open()
        if self._version is None:
            self._version = (await flows.put(self.core, self.definition)).version
        return await flows.start(self.core, self._build(args, kwargs, self._version, trigger, run_id))


class WorkflowType(BaseWorkflowType[P]):
    """A workflow of an async Backstay."""

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        """Start a run. The function gets the flow and then these arguments."""
        return RunHandle(self.core, await self.begin(args, dict(kwargs), "manual"))


class BlockingWorkflowType(BaseWorkflowType[P]):
    """A workflow of a blocking Backstay."""

    def start(self, *args: P.args, **kwargs: P.kwargs) -> BlockingRunHandle:
        """Start a run. The function gets the flow and then these arguments."""
        return BlockingRunHandle(self.core, do(self.begin(args, dict(kwargs), "manual")))


class WorkflowDecorator(Protocol):
    """The decorator that `stay.workflow(...)` returns."""

    def __call__(self, function: Callable[Concatenate[Flow, P], Any], /) -> WorkflowType[P]: ...


class BlockingWorkflowDecorator(Protocol):
    """The decorator that the blocking `stay.workflow(...)` returns."""

    def __call__(self, function: Callable[Concatenate[Flow, P], Any], /) -> BlockingWorkflowType[P]: ...


def _plain_default(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) else None


def _code_digest(function: Callable[..., Any]) -> str:
    """Return the digest of a function's source, or of its byte code if the source is not available."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        code = function.__code__
        text = repr((code.co_code, [one for one in code.co_consts if not inspect.iscode(one)], code.co_names))
    return sha256(text.encode(errors="replace")).hexdigest()
