"""`@stay.idempotent("charge:{order_id}")`: a function whose calls run once each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from backstay.errors import ConfigError
from backstay.idempotency.codec import codec_for
from backstay.idempotency.execution import run_async, run_blocking
from backstay.idempotency.fingerprint import Arguments
from backstay.idempotency.flows import Spec
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import Template

F = TypeVar("F", bound=Callable[..., Any])


class Calls:
    """What each call of a function is called and how it is run: `options` with its own key and fingerprint."""

    def __init__(
        self,
        core: Core,
        function: Callable[..., Any],
        key: str | None,
        fields: Iterable[str] | None,
        options: Spec,
        codec: object,
    ) -> None:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"{function.__qualname__} is a generator, of which nothing can be kept: return a list")
        self._core = core
        self._function = function
        self._template = None if key is None else Template(key, function)
        self._arguments = Arguments(function, fields)
        self._compares = fields is not None
        self._options = options
        self._codec = codec

    def _spec(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spec:
        if self._template is None:
            return replace(self._options, name=self._arguments.key(args, kwargs))
        key = validation.name(self._template.key(args, kwargs), "key")
        compared = self._arguments.fingerprint(args, kwargs) if self._compares else ""
        return replace(self._options, name=key, fingerprint=compared)

    @functools.cached_property
    def _kept_as(self) -> Any:
        """Not before the first call: an annotation may name what is defined further down."""
        return codec_for(self._codec, self._function)

    async def run_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wanted, kept_as = self._spec(args, kwargs), self._kept_as
        return await run_async(self._core, wanted, lambda: self._function(*args, **kwargs), kept_as)

    def run_blocking(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wanted, kept_as = self._spec(args, kwargs), self._kept_as
        return run_blocking(self._core, wanted, lambda: self._function(*args, **kwargs), kept_as)


def awaited(calls: Calls, function: F) -> F:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await calls.run_async(args, kwargs)

    return cast("F", wrapper)


def blocking(calls: Calls, function: F) -> F:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return calls.run_blocking(args, kwargs)

    return cast("F", wrapper)
