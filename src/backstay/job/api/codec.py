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

#: The default limits (bytes) of a job's encoded arguments and of its encoded result. Store larger data elsewhere, for
#: example in a file, and pass its name.
PAYLOAD_LIMIT = 1024 * 1024
RESULT_LIMIT = 1024 * 1024

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_PLAIN = inspect.Parameter.POSITIONAL_OR_KEYWORD
_REST = inspect.Parameter.VAR_POSITIONAL
_NAMED_REST = inspect.Parameter.VAR_KEYWORD

#: The positional and keyword arguments of a call.
Call = tuple[tuple[Any, ...], dict[str, Any]]


class JobCodec:
    """Encodes and decodes the arguments and the result of one function. Its annotations are resolved at the first call,
    because they may name types that are defined later in the module.
    """

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
        # `_simple`: whether every parameter can be passed both by position and by name. `_names`: then the names of all
        # parameters, else empty.
        simple = all(p.kind is _PLAIN for p in self._parameters)
        self._names = tuple(p.name for p in self._parameters) if simple else ()
        self._simple = simple
        #: The name of the first parameter; None if `_names` is empty.
        self.first = self._names[0] if self._names else None
        self._encode = msgspec.msgpack.Encoder(enc_hook=to_plain).encode
        #: The codecs of single arguments, by name. Each is created once, because a workflow that maps a job over a list
        #: may encode thousands of calls.
        self._by_name: dict[str, PlainCodec] = {}

    @property
    def required(self) -> list[str]:
        """The names of the parameters without a default."""
        return [p.name for p in self._parameters if p.default is p.empty and p.kind not in (_REST, _NAMED_REST)]

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self.function, include_extras=True)
        except NameError as error:
            raise ConfigError(f"an annotation of job {self.name!r} cannot be resolved: {error}") from error

    def _annotation(self, parameter: inspect.Parameter) -> Any:
        kind: Any = self._hints.get(parameter.name, Any)
        if parameter.kind is _REST:
            return types.GenericAlias(list, (kind,))
        if parameter.kind is _NAMED_REST:
            return types.GenericAlias(dict, (str, kind))
        return kind

    @cached_property
    def _shape(self) -> Callable[..., Any]:
        """A struct type with one field per parameter. The fast path of `encode_args` encodes such a struct instead of
        the dict that `bind` returns: the bytes are the same.
        """
        return msgspec.defstruct("Call", self._names, gc=False)

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        fields: list[Any] = []
        for p in self._parameters:
            kind = self._annotation(p)
            if p.default is p.empty and p.kind not in (_REST, _NAMED_REST):
                fields.append((p.name, kind))
            else:
                fields.append((p.name, kind if kind is Any else typing.Union[kind, msgspec.UnsetType], UNSET))  # noqa: UP007 - kind may be text
        try:
            shape = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)
            return msgspec.msgpack.Decoder(shape, dec_hook=from_plain).decode
        except TypeError as error:
            for parameter in self._parameters:
                self._argument_codec(parameter)
            raise ConfigError(f"the arguments of job {self.name!r} cannot be decoded: {error}") from error

    def _argument_codec(self, parameter: inspect.Parameter) -> PlainCodec:
        """Return the codec of a single argument. Raises ConfigError if its annotated type cannot be decoded."""
        known = self._by_name.get(parameter.name)
        if known is not None:
            return known
        try:
            made = self._by_name[parameter.name] = PlainCodec(self._annotation(parameter))
        except TypeError as error:
            raise ConfigError(
                f"argument {parameter.name!r} of job {self.name!r} cannot be decoded from plain data: {error}"
            ) from error
        return made

    @cached_property
    def _result(self) -> PlainCodec:
        kind = _remove_outcomes(self._hints.get("return", Any))
        try:
            return PlainCodec(kind)
        except TypeError as error:
            raise ConfigError(f"the result of job {self.name!r} cannot be decoded: {error}") from error

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return a call's values by parameter name. Raises TypeError, as the call itself would."""
        if self._simple and not kwargs and len(args) == len(self._names):  # fast path: every argument by position
            return dict(zip(self._names, args, strict=True))
        return self.signature.bind(*args, **kwargs).arguments

    def encode_args(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode the arguments of a call. Raises BadArgument, which names the argument; PayloadTooLarge; TypeError for
        arguments that do not match the signature.
        """
        if args and not kwargs and len(args) == len(self._names):  # fast path: every argument by position
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
            self._raise_bad_argument(values)
            raise BadArgument(type=self.name, argument=", ".join(values), reason=str(error)) from error
        if len(raw) > self.payload_limit:
            raise PayloadTooLarge(type=self.name, what="arguments", size=len(raw), limit=self.payload_limit)
        return raw

    def encode_gaps(self, values: dict[str, Any], gaps: frozenset[str]) -> bytes:
        """Encode the arguments of a call if some of them depend on results of other jobs, which are not known yet.
        `gaps` names these arguments. Their values have None in place of each such result, so their types are not
        checked here. Raises BadArgument, PayloadTooLarge.
        """
        for name, value in values.items():
            if value is None and name in gaps:
                continue
            codec = self._by_name.get(name) or self._argument_codec(self.signature.parameters[name])
            try:
                raw = codec.encode(value)
                if name not in gaps:
                    codec.decode(raw)
            except Exception as error:
                raise BadArgument(type=self.name, argument=name, reason=str(error)) from error
        raw = self._encode(values) if values else b""
        if len(raw) > self.payload_limit:
            raise PayloadTooLarge(type=self.name, what="arguments", size=len(raw), limit=self.payload_limit)
        return raw

    def _raise_bad_argument(self, values: dict[str, Any]) -> None:
        """Raise BadArgument for the first argument that cannot be encoded or decoded."""
        for name, value in values.items():
            codec = self._argument_codec(self.signature.parameters[name])
            try:
                codec.decode(codec.encode(value))
            except Exception as error:
                raise BadArgument(type=self.name, argument=name, reason=str(error)) from error

    def decode_args(self, raw: bytes) -> Call:
        """Decode a call's arguments. Raises BadArgument if the function of this process does not accept them: the job
        was perhaps enqueued for another version of the function.
        """
        try:
            decoded = self._decode(raw or b"\x80")
        except ConfigError:
            raise
        except Exception as error:
            raise BadArgument(type=self.name, argument=_argument_in(error), reason=str(error)) from error
        values = msgspec.structs.astuple(decoded)
        if self._simple:
            for value in values:
                if value is UNSET:
                    break
            else:
                return values, {}
        return self._to_call(values)

    def _to_call(self, values: tuple[Any, ...]) -> Call:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        rest = any(p.kind is _REST and v is not UNSET for p, v in zip(self._parameters, values, strict=True))
        for parameter, value in zip(self._parameters, values, strict=True):
            if value is UNSET:
                if rest and parameter.kind in (_PLAIN, _POSITIONAL):  # values for *args follow, so none may be left out
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
        """Encode a handler's result. Raises BadResult if it does not match the return annotation; PayloadTooLarge."""
        codec = self._result
        try:
            raw = codec.encode(value)
            if value is not None:
                codec.decode(raw)
        except Exception as error:
            raise BadResult(type=self.name, reason=str(error)) from error
        if len(raw) > self.result_limit:
            raise PayloadTooLarge(type=self.name, what="result", size=len(raw), limit=self.result_limit)
        return raw

    def decode_result(self, raw: bytes) -> Any:
        """Decode a result. Raises BadResult if it does not match the return annotation of this process's function."""
        if raw in (b"", b"\xc0"):
            return None
        try:
            return self._result.decode(raw)
        except Exception as error:
            raise BadResult(type=self.name, reason=str(error)) from error


def _remove_outcomes(kind: Any) -> Any:
    """Return a return annotation without `Retry`, `Snooze` and `Cancel`, which are never stored as results: `int` for
    `int | Retry`.
    """
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return Any if _is_outcome(kind) else kind
    left: list[Any] = [part for part in typing.get_args(kind) if not _is_outcome(part)]
    return typing.Union[tuple(left)] if left else Any  # noqa: UP007 - made of parts


def _is_outcome(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(cast("type[Any]", kind), Outcome)


def _argument_in(error: Exception) -> str:
    """Return the argument that a decoder's error message names; "?" if it names none."""
    words = str(error)
    if "`$." in words:
        return words.rpartition("`$.")[2].partition("`")[0].partition(".")[0].partition("[")[0]
    if "field `" in words:
        return words.partition("field `")[2].partition("`")[0]
    return "?"
