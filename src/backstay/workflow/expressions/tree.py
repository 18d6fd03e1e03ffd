"""An expression that was read, as a tree. See `expression.py`."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Constant(Struct, frozen=True):
    value: Any
    at: int


class Reference(Struct, frozen=True):
    """`needs.build.outputs.path`, as its names."""

    path: tuple[str, ...]
    at: int


class Call(Struct, frozen=True):
    name: str
    at: int


class Not(Struct, frozen=True):
    one: Tree


class Compare(Struct, frozen=True):
    left: Tree
    right: Tree
    equal: bool


class All(Struct, frozen=True):
    """`&&`: the first that is not true, else the last."""

    parts: tuple[Tree, ...]


class Any_(Struct, frozen=True):  # noqa: N801 - `Any` is taken
    """`||`: the first that is true, else the last."""

    parts: tuple[Tree, ...]


Tree = Constant | Reference | Call | Not | Compare | All | Any_
