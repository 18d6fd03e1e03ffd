"""Encoding of arguments and results: values survive the round trip, and invalid ones are refused by name."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from backstay import BadArgument, BadResult, ConfigError, PayloadTooLarge, Retry, Snooze
from backstay.job.api.codec import JobCodec


@dataclass
class Order:
    id: int
    lines: list[str]


class Point(msgspec.Struct):
    x: int
    y: int


class Customer(pydantic.BaseModel):
    name: str
    since: date


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


def codec(function, **limits):
    return JobCodec(function.__name__, function, **limits)


def round_trip(function, *args, **kwargs):
    """Encode and decode a call; return the arguments that the worker's function receives."""
    made = codec(function)
    got, named = made.decode_args(made.encode_args(args, kwargs))
    bound = made.signature.bind(*got, **named)
    return bound.arguments


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**63 - 1),
        (float, 1.5),
        (str, "grüße\x00"),
        (bytes, b"\x00\xff"),
        (bool, True),
        (None, None),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (set[str], {"a", "b"}),
        (frozenset[int], frozenset({1, 2})),
        (dict[str, list[int]], {"a": [1]}),
        (dict[int, str], {1: "a"}),
        (datetime, datetime(2026, 5, 1, 12, 30, 1, 250, tzinfo=UTC)),
        (datetime, datetime(2026, 5, 1, 12, 30)),  # noqa: DTZ001 - a naive datetime stays naive
        (date, date(2026, 5, 1)),
        (timedelta, timedelta(hours=1, microseconds=5)),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (Order, Order(1, ["a"])),
        (Point, Point(1, 2)),
        (Customer, Customer(name="a", since=date(2026, 5, 1))),
        (list[Order], [Order(1, [])]),
        (Size, Size.LARGE),
        (Order | None, Order(2, [])),
        (int | str, "x"),
    ],
)
def test_an_argument_is_decoded_as_it_was_encoded(kind, value):
    def job(value): ...

    job.__annotations__ = {"value": kind, "return": kind}
    assert round_trip(job, value) == {"value": value}
    made = codec(job)
    assert made.decode_result(made.encode_result(value)) == value
    assert type(made.decode_result(made.encode_result(value))) is type(value)


def test_omitted_arguments_take_the_workers_defaults():
    def job(a: int, b: int = 2, *, c: int = 3): ...

    assert round_trip(job, 1) == {"a": 1}
    assert round_trip(job, 1, c=9) == {"a": 1, "c": 9}


def test_every_kind_of_parameter_is_passed():
    def job(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: str): ...

    assert round_trip(job, 1) == {"a": 1}
    assert round_trip(job, 1, 2, 3, 4, c=5, d="x") == {"a": 1, "b": 2, "rest": (3, 4), "c": 5, "more": {"d": "x"}}
    assert round_trip(job, 1, c=5) == {"a": 1, "c": 5}


def test_arguments_without_annotations_are_plain_data():
    def job(value): ...

    assert round_trip(job, {"a": [1, None, b"x"]}) == {"value": {"a": [1, None, b"x"]}}


def test_a_call_without_arguments_is_encoded_in_no_bytes():
    def job(): ...

    assert codec(job).encode_args((), {}) == b""
    assert codec(job).decode_args(b"") == ((), {})


@pytest.mark.parametrize("value", [object(), lambda: None, {"deep": [object()]}, 2**70, 1j])
def test_an_argument_that_cannot_be_encoded_is_named(value):
    def job(path: str, thing: Any): ...

    with pytest.raises(BadArgument, match=r"argument 'thing' of job") as caught:
        codec(job).encode_args(("a", value), {})
    assert caught.value.argument == "thing"


def test_an_argument_of_the_wrong_type_is_refused_at_enqueue():
    def job(path: str, size: int = 1): ...

    with pytest.raises(BadArgument, match=r"'size'.*`int`, got `str`"):
        codec(job).encode_args(("a",), {"size": "large"})


def test_a_call_that_violates_the_signature_is_a_type_error():
    def job(path: str): ...

    with pytest.raises(TypeError, match="path"):
        codec(job).encode_args((), {})
    with pytest.raises(TypeError, match="colour"):
        codec(job).encode_args(("a",), {"colour": 1})


def test_a_payload_above_the_limit_is_refused():
    def job(data: bytes) -> bytes: ...

    made = codec(job, payload_limit=100, result_limit=200)
    with pytest.raises(PayloadTooLarge, match="payload_limit") as caught:
        made.encode_args((b"x" * 100,), {})
    assert (caught.value.limit, caught.value.size > 100) == (100, True)
    with pytest.raises(PayloadTooLarge, match="result_limit"):
        made.encode_result(b"x" * 200)
    assert made.encode_result(b"x" * 100)


def test_a_newer_signature_decodes_arguments_of_an_older_one():
    def old(path: str): ...

    def new(path: str, size: int = 5): ...

    assert codec(new).decode_args(codec(old).encode_args(("a",), {})) == ((), {"path": "a"})


def test_an_older_signature_refuses_arguments_that_it_does_not_know():
    def old(path: str): ...

    def new(path: str, size: int = 5): ...

    with pytest.raises(BadArgument, match="size"):
        codec(old).decode_args(codec(new).encode_args(("a", 9), {}))


def test_an_argument_whose_type_changed_is_named():
    def old(size: str): ...

    def new(size: int): ...

    with pytest.raises(BadArgument) as caught:
        codec(new).decode_args(codec(old).encode_args(("9",), {}))
    assert caught.value.argument == "size"


def test_a_result_that_cannot_be_encoded_is_refused():
    def job() -> int: ...

    with pytest.raises(BadResult, match="job"):
        codec(job).encode_result("x")
    with pytest.raises(BadResult, match="plain data"):
        codec(job).encode_result(object())


def test_outcome_types_in_the_return_annotation_are_ignored():
    def job() -> int | Snooze | Retry: ...

    assert codec(job).decode_result(codec(job).encode_result(3)) == 3
    with pytest.raises(BadResult):
        codec(job).encode_result("x")


def test_an_unresolvable_annotation_is_named():
    def job(a: "Undefined"): ...  # noqa: F821, UP037 - the mistake under test

    with pytest.raises(ConfigError, match="Undefined"):
        codec(job).encode_args((1,), {})


def test_an_ambiguous_union_annotation_is_named():
    def job(ok: int, bad: Order | Customer | Point): ...

    with pytest.raises(ConfigError, match="'bad'"):
        codec(job).encode_args((1, Point(1, 2)), {})


def test_an_annotation_may_be_a_forward_reference():
    def job(a: "Later"): ...  # noqa: UP037 - a forward reference

    made = codec(job)
    assert made.decode_args(made.encode_args((Later(3),), {}))[0] == (Later(3),)


@dataclass
class Later:
    n: int


def test_positional_and_keyword_calls_are_encoded_alike():
    def resize(path: str, size: int = 100) -> None: ...

    made = codec(resize)
    assert made.encode_args(("a.png", 64), {}) == made.encode_args((), {"path": "a.png", "size": 64})


def test_positional_calls_are_validated_like_keyword_calls():
    def resize(path: str, size: int = 100) -> None: ...

    made = codec(resize, payload_limit=40)
    with pytest.raises(BadArgument) as bad:
        made.encode_args(("b.png", "large"), {})
    assert bad.value.argument == "size"
    with pytest.raises(PayloadTooLarge):
        made.encode_args(("b" * 40, 1), {})
    with pytest.raises(TypeError):
        made.encode_args(("a.png", 1, 2), {})
