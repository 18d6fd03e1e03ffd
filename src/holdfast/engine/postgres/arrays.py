"""Columns as PostgreSQL arrays, packed in one go: psycopg's own way looks at every element several times."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEAD = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_BIGINT = struct.Struct("!iq")


class Array:
    """One column of rows on its way to `unnest`."""

    __slots__ = ("items",)

    element: ClassVar[int]
    oid: ClassVar[int]

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def packed(self) -> list[bytes]:
        """Each element with its length before it."""
        parts: list[bytes] = []
        for item in self.items:
            parts += (_LENGTH.pack(len(item)), item)
        return parts


class Bytes(Array):
    element, oid = 17, 1001


class Texts(Array):
    element, oid = 25, 1009

    def packed(self) -> list[bytes]:
        parts: list[bytes] = []
        for item in self.items:
            raw = item.encode()
            parts += (_LENGTH.pack(len(raw)), raw)
        return parts


class Numbers(Array):
    element, oid = 20, 1016

    def packed(self) -> list[bytes]:
        return [_BIGINT.pack(8, item) for item in self.items]


class ArrayDumper(Dumper):
    """How a column travels: one dimension, no NULLs, counted from 1."""

    format = Format.BINARY

    def dump(self, obj: Array) -> bytes:
        head = _HEAD.pack(1, 0, obj.element, len(obj.items), 1)
        return head + b"".join(obj.packed())


class BytesDumper(ArrayDumper):
    oid = Bytes.oid


class TextsDumper(ArrayDumper):
    oid = Texts.oid


class NumbersDumper(ArrayDumper):
    oid = Numbers.oid


def teach(connection: psycopg.Connection[Any]) -> None:
    """Let a connection take columns as parameters."""
    for kind, dumper in ((Bytes, BytesDumper), (Texts, TextsDumper), (Numbers, NumbersDumper)):
        connection.adapters.register_dumper(kind, dumper)
