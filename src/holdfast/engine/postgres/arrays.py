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
_DOUBLE = struct.Struct("!id")
#: Most elements are short: their lengths are packed once and for all.
_SHORT = 512
_LENGTHS = [_LENGTH.pack(size) for size in range(_SHORT)]


def _sized(raw: bytes) -> bytes:
    size = len(raw)
    return (_LENGTHS[size] if size < _SHORT else _LENGTH.pack(size)) + raw


class Array:
    """One column of rows on its way to `unnest`."""

    __slots__ = ("dumped", "items")

    element: ClassVar[int]
    oid: ClassVar[int]

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        #: How it travels, once that is known: names go out twice, to be locked and to be written.
        self.dumped: bytes | None = None

    def packed(self) -> list[bytes]:
        """Each element with its length before it."""
        return [_sized(item) for item in self.items]


class Bytes(Array):
    element, oid = 17, 1001


class Texts(Array):
    element, oid = 25, 1009

    def packed(self) -> list[bytes]:
        items = self.items
        if items and items.count(items[0]) == len(items):  # most groups are of one room
            return [_sized(items[0].encode())] * len(items)
        return [_sized(item.encode()) for item in items]


class Numbers(Array):
    element, oid = 20, 1016

    def packed(self) -> list[bytes]:
        return [_BIGINT.pack(8, item) for item in self.items]


class Floats(Array):
    element, oid = 701, 1022

    def packed(self) -> list[bytes]:
        return [_DOUBLE.pack(8, item) for item in self.items]


def dump(column: Array) -> bytes:
    """How a column travels: one dimension, no NULLs, counted from 1."""
    if column.dumped is None:
        head = _HEAD.pack(1, 0, column.element, len(column.items), 1)
        column.dumped = head + b"".join(column.packed())
    return column.dumped


class ArrayDumper(Dumper):
    """The same for psycopg."""

    format = Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return dump(obj)


class BytesDumper(ArrayDumper):
    oid = Bytes.oid


class TextsDumper(ArrayDumper):
    oid = Texts.oid


class NumbersDumper(ArrayDumper):
    oid = Numbers.oid


class FloatsDumper(ArrayDumper):
    oid = Floats.oid


def teach(connection: psycopg.Connection[Any]) -> None:
    """Let a connection take columns as parameters."""
    for kind, dumper in ((Bytes, BytesDumper), (Texts, TextsDumper), (Numbers, NumbersDumper), (Floats, FloatsDumper)):
        connection.adapters.register_dumper(kind, dumper)
