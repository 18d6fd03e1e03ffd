"""Encode and decode a function's arguments and result by its annotations.

Arguments are encoded by name, so that a worker with a newer version of the function can still decode them; omitted ones
get the defaults of the worker's version. Arguments that a worker could not decode are rejected when they are enqueued.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

import msgspec
from msgspec import UNSET

from backstay.errors import BadArgument, BadResult, ConfigError, PayloadTooLarge
from backstay.job.api.retry import Outcome
from backstay.runtime.serialization import PlainCodec, from_plain, to_plain

#: Default size limits, in bytes. Larger data belongs in a separate store, with its name among the arguments.
PAYLOAD_LIMIT = 1024 * 1024
RESULT_LIMIT = 1024 * 1024

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_PLAIN = inspect.Parameter.POSITIONAL_OR_KEYWORD
_REST = inspect.Parameter.VAR_POSITIONAL
_NAMED_REST = inspect.Parameter.VAR_KEYWORD

#: The positional and keyword arguments of a call.
Call = tuple[tuple[Any, ...], dict[str, Any]]


class JobCodec:
    """The codec of one function. Annotations are resolved at first use: they may name types defined later."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        payload_limit: int = PAYLOAD_LIMIT,
        result_limit: int = RESULT_LIMIT,
    ) -> None:
        self.name = name
        self.function = function
        self.payload_limit = payload_limit
        self.result_limit = result_limit
        self.signature = inspect.signature(function)
        self._parameters = list(self.signature.parameters.values())
        #: The names of all parameters if each takes one value and may be passed by position; else empty.
        simple = all(p.kind is _PLAIN for p in self._parameters)
        self._names = tuple(p.name for p in self._parameters) if simple else ()
        self._simple = simple
        #: The name of the first positional parameter; None if the signature is not simple.
        self.first = self._names[0] if self._names else None
        self._encode = msgspec.msgpack.Encoder(enc_hook=to_plain).encode
        #: Codecs of single arguments, created once: a map may encode thousands of calls.
        self._by_name: dict[str, PlainCodec] = {}

    @property
    def required(self) -> list[str]:
        """The names of parameters without a default."""
        return [p.name for p in self._parameters if p.default is p.empty and p.kind not in (_REST, _NAMED_REST)]

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self.function, include_extras=True)
        except NameError as error:
            raise ConfigError(f"an annotation of job {self.name!r} cannot be resolved: {error}") from error

    def _kind(self, parameter: inspect.Parameter) -> Any:
        kind: Any = self._hints.get(parameter.name, Any)
        if parameter.kind is _REST:
            return types.GenericAlias(list, (kind,))
        if parameter.kind is _NAMED_REST:
            return types.GenericAlias(dict, (str, kind))
        return kind

    @cached_property
    def _shape(self) -> Callable[..., Any]:
        """A struct type with the call's values by position; it encodes like the dict that `bind` returns."""
        return msgspec.defstruct("Call", self._names, gc=False)

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        fields: list[Any] = []
        for p in self._parameters:
            kind = self._kind(p)
            if p.default is p.empty and p.kind not in (_REST, _NAMED_REST):
                fields.append((p.name, kind))
            else:
                fields.append((p.name, kind if kind is Any else typing.Union[kind, msgspec.UnsetType], UNSET))  # noqa: UP007 - kind may be text
        try:
            shape = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)
            return msgspec.msgpack.Decoder(shape, dec_hook=from_plain).decode
        except TypeError as error:
            for parameter in self._parameters:
                self._alone(parameter)
            raise ConfigError(f"the arguments of job {self.name!r} cannot be decoded: {error}") from error

    def _alone(self, parameter: inspect.Parameter) -> PlainCodec:
        """Return the codec of a single argument."""
        known = self._by_name.get(parameter.name)
        if known is not None:
            return known
        try:
            made = self._by_name[parameter.name] = PlainCodec(self._kind(parameter))
        except TypeError as error:
            raise ConfigError(
                f"argument {parameter.name!r} of job {self.name!r} cannot be decoded from plain data: {error}"
            ) from error
        return made

    @cached_property
    def _result(self) -> PlainCodec:
        kind = without_outcomes(self._hints.get("return", Any))
        try:
            return PlainCodec(kind)
        except TypeError as error:
            raise ConfigError(f"the result of job {self.name!r} cannot be decoded: {error}") from error

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return a call's values by parameter name. Raises TypeError, as the call itself would."""
        if self._simple and not kwargs and len(args) == len(self._names):  # fast path for the usual call
            return dict(zip(self._names, args, strict=True))
        return self.signature.bind(*args, **kwargs).arguments

    def encode_args(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode the arguments of a call. Raises BadArgument, which names the argument; PayloadTooLarge; TypeError for
        arguments that do not match the signature.
        """
        if args and not kwargs and len(args) == len(self._names):  # fast path for the usual call
            try:
                raw = self._encode(self._shape(*args))
                self._decode(raw)
            except Exception:  # noqa: BLE001 - raised again below, with the argument's name
                raw = b""
            if 0 < len(raw) <= self.payload_limit:
                return raw
        return self.encode_values(self.bind(args, kwargs))

    def encode_values(self, values: dict[str, Any]) -> bytes:
        """Encode arguments that `bind` returned. Raises BadArgument, PayloadTooLarge."""
        if not values:
            return b""
        try:
            raw = self._encode(values)
            self._decode(raw)
        except ConfigError:
            raise
        except Exception as error:
            self._blame(values)
            raise BadArgument(type=self.name, argument=", ".join(values), reason=str(error)) from error
        if len(raw) > self.payload_limit:
            raise PayloadTooLarge(type=self.name, what="arguments", size=len(raw), limit=self.payload_limit)
        return raw

    def encode_gaps(self, values: dict[str, Any], gaps: frozenset[str]) -> bytes:
        """Encode arguments of which some are not known yet: `values` has None in the gaps, and arguments with gaps are
        not checked here. Raises BadArgument, PayloadTooLarge.
        """
        for name, value in values.items():
            if value is None and name in gaps:
                continue
            alone = self._by_name.get(name) or self._alone(self.signature.parameters[name])
            try:
                raw = alone.encode(value)
                if name not in gaps:
                    alone.decode(raw)
            except Exception as error:
                raise BadArgument(type=self.name, argument=name, reason=str(error)) from error
        raw = self._encode(values) if values else b""
        if len(raw) > self.payload_limit:
            raise PayloadTooLarge(type=self.name, what="arguments", size=len(raw), limit=self.payload_limit)
        return raw

    def _blame(self, values: dict[str, Any]) -> None:
        """Raise BadArgument for the first argument that cannot be encoded or decoded."""
        for name, value in values.items():
            alone = self._alone(self.signature.parameters[name])
            try:
                alone.decode(alone.encode(value))
            except Exception as error:
                raise BadArgument(type=self.name, argument=name, reason=str(error)) from error

    def decode_args(self, raw: bytes) -> Call:
        """Decode a call's arguments. Raises BadArgument if this version of the function does not accept them."""
        try:
            decoded = self._decode(raw or b"\x80")
        except ConfigError:
            raise
        except Exception as error:
            raise BadArgument(type=self.name, argument=_path(error), reason=str(error)) from error
        values = msgspec.structs.astuple(decoded)
        if self._simple:
            for value in values:
                if value is UNSET:
                    break
            else:
                return values, {}
        return self._spread(values)

    def _spread(self, values: tuple[Any, ...]) -> Call:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        rest = any(p.kind is _REST and v is not UNSET for p, v in zip(self._parameters, values, strict=True))
        for parameter, value in zip(self._parameters, values, strict=True):
            if value is UNSET:
                if rest and parameter.kind in (_PLAIN, _POSITIONAL):  # the following arguments are passed by position
                    args.append(parameter.default)
            elif parameter.kind is _REST:
                args += value
            elif parameter.kind is _NAMED_REST:
                kwargs |= value
            elif parameter.kind is _POSITIONAL or (rest and parameter.kind is _PLAIN):
                args.append(value)
            else:
                kwargs[parameter.name] = value
        return tuple(args), kwargs

    def encode_result(self, value: Any) -> bytes:
        """Encode a result. Raises BadResult or PayloadTooLarge, after the handler has run."""
        kept_as = self._result
        try:
            raw = kept_as.encode(value)
            if value is not None:
                kept_as.decode(raw)
        except Exception as error:
            raise BadResult(type=self.name, reason=str(error)) from error
        if len(raw) > self.result_limit:
            raise PayloadTooLarge(type=self.name, what="result", size=len(raw), limit=self.result_limit)
        return raw

    def decode_result(self, raw: bytes) -> Any:
        """Decode a result. Raises BadResult if this version's return annotation does not allow it."""
        if raw in (b"", b"\xc0"):
            return None
        try:
            return self._result.decode(raw)
        except Exception as error:
            raise BadResult(type=self.name, reason=str(error)) from error


def without_outcomes(kind: Any) -> Any:
    """Return the annotation without `Retry`, `Snooze` and `Cancel`, which are never stored."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return Any if _is_outcome(kind) else kind
    left: list[Any] = [part for part in typing.get_args(kind) if not _is_outcome(part)]
    return typing.Union[tuple(left)] if left else Any  # noqa: UP007 - made of parts


def _is_outcome(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(cast("type[Any]", kind), Outcome)


def _path(error: Exception) -> str:
    """Return the name of the argument in a decoder's error message."""
    words = str(error)
    if "`$." in words:
        return words.rpartition("`$.")[2].partition("`")[0].partition(".")[0].partition("[")[0]
    if "field `" in words:
        return words.partition("field `")[2].partition("`")[0]
    return "?"
