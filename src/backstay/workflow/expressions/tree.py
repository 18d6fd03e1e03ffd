"""Nodes of the syntax tree of an expression. `at` is the offset of the node in the expression's text."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Constant(Struct, frozen=True):
    value: Any
    at: int


class Reference(Struct, frozen=True):
    """A dotted name like `needs.build.outputs.path`, split into its parts."""

    path: tuple[str, ...]
    at: int


class StatusCall(Struct, frozen=True):
    name: str
    at: int


class Not(Struct, frozen=True):
    operand: Tree


class Compare(Struct, frozen=True):
    left: Tree
    right: Tree
    equal: bool


class And(Struct, frozen=True):
    """`&&`: evaluates to the first operand that is not true, else to the last."""

    parts: tuple[Tree, ...]


class Or(Struct, frozen=True):
    """`||`: evaluates to the first true operand, else to the last."""

    parts: tuple[Tree, ...]


Tree = Constant | Reference | StatusCall | Not | Compare | And | Or
