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
#: Most elements are short: their lengths are packed once and for all.
_SHORT = 512
_LENGTHS = [_LENGTH.pack(size) for size in range(_SHORT)]


def _sized(raw: bytes) -> bytes:
    size = len(raw)
    return (_LENGTHS[size] if size < _SHORT else _LENGTH.pack(size)) + raw


class Array:
    """One column of rows on its way to `unnest`."""

    __slots__ = ("items",)

    element: ClassVar[int]
    oid: ClassVar[int]

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

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
