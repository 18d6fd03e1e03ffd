"""The decorator `@stay.idempotent("charge:{order_id}")`: each call of the function runs once per key."""

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
from backstay.idempotency.flows import IdempotencySpec
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import KeyTemplate

F = TypeVar("F", bound=Callable[..., Any])


class IdempotentFunction:
    """A decorated function. Each call runs with `options` and with the key and fingerprint of its arguments."""

    def __init__(
        self,
        core: Core,
        function: Callable[..., Any],
        key: str | None,
        fields: Iterable[str] | None,
        options: IdempotencySpec,
        codec: object,
    ) -> None:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"{function.__qualname__} is a generator, whose result cannot be stored: return a list")
        self._core = core
        self._function = function
        self._template = None if key is None else KeyTemplate(key, function)
        self._arguments = Arguments(function, fields)
        self._compares = fields is not None
        self._options = options
        self._codec = codec

    def _spec(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> IdempotencySpec:
        if self._template is None:
            return replace(self._options, name=self._arguments.key(args, kwargs))
        key = validation.check_name(self._template.key(args, kwargs), "key")
        compared = self._arguments.fingerprint(args, kwargs) if self._compares else ""
        return replace(self._options, name=key, fingerprint=compared)

    @functools.cached_property
    def _result_codec(self) -> Any:
        """Resolve the codec at the first call, because an annotation may name a class that is defined later."""
        return codec_for(self._codec, self._function)

    async def run_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wanted, codec = self._spec(args, kwargs), self._result_codec
        return await run_async(self._core, wanted, lambda: self._function(*args, **kwargs), codec)

    def run_blocking(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wanted, codec = self._spec(args, kwargs), self._result_codec
        return run_blocking(self._core, wanted, lambda: self._function(*args, **kwargs), codec)


def wrap_async(calls: IdempotentFunction, function: F) -> F:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await calls.run_async(args, kwargs)

    return cast("F", wrapper)


def wrap_blocking(calls: IdempotentFunction, function: F) -> F:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return calls.run_blocking(args, kwargs)

    return cast("F", wrapper)
