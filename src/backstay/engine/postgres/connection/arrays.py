"""Columns as PostgreSQL arrays, packed in one go: psycopg's own way looks at every element several times."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
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
#: Below it, a length is a text, too.
_ASCII = 128
#: Names are shorter; ids and arguments, of which no two are alike, mostly are not.
_NAME = 24


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

    def packed(self) -> bytes:
        """Each element with its length before it."""
        items = self.items
        if not items:
            return b""
        if items.count(items[0]) == len(items):  # many a column is the same in all rows
            return self._each(items[:1]) * len(items)
        return self._each(items)

    def _each(self, items: Sequence[Any]) -> bytes:
        raise NotImplementedError

    def recurs(self, item: Any) -> bool:
        """Whether a lone element may be seen again, and costs little to remember."""
        return len(item) < _NAME


class Bytes(Array):
    element, oid = 17, 1001

    def _each(self, items: Sequence[bytes]) -> bytes:
        if len(set(map(len, items))) == 1:
            length = _LENGTH.pack(len(items[0]))
            return length + length.join(items)
        return b"".join([_sized(item) for item in items])


class Places(Bytes):
    """Where rows lie (`ctid`)."""

    element, oid = 27, 1010


class Texts(Array):
    element, oid = 25, 1009

    def _each(self, items: Sequence[str]) -> bytes:
        if len(items[0]) < _ASCII and len(set(map(len, items))) == 1:  # as ids are
            length = f"\0\0\0{chr(len(items[0]))}"
            text = length + length.join(items)
            if text.isascii():
                return text.encode()
        return b"".join([_sized(item.encode()) for item in items])


class Numbers(Array):
    element, oid = 20, 1016

    def recurs(self, item: int) -> bool:
        return True

    def _each(self, items: Sequence[int]) -> bytes:
        return b"".join(map(_BIGINT.pack, repeat(8), items))


class Floats(Array):
    element, oid = 701, 1022

    def recurs(self, item: float) -> bool:
        return False  # 0.0 and -0.0 are the same key

    def _each(self, items: Sequence[float]) -> bytes:
        return b"".join(map(_DOUBLE.pack, repeat(8), items))


def dump(column: Array) -> bytes:
    """How a column travels: one dimension, no NULLs, counted from 1."""
    if column.dumped is None:
        items = column.items
        if len(items) == 1 and column.recurs(items[0]):
            column.dumped = _lone(column.oid, items[0])
        else:
            column.dumped = _dump(column)
    return column.dumped


def _dump(column: Array) -> bytes:
    return _HEAD.pack(1, 0, column.element, len(column.items), 1) + column.packed()


#: By what an array of it is called.
_KINDS: dict[int, type[Array]] = {kind.oid: kind for kind in (Bytes, Places, Texts, Numbers)}


@lru_cache(maxsize=1024)
def _lone(oid: int, item: Any) -> bytes:
    """Of a lone row most columns are as they always are."""
    return _dump(_KINDS[oid]([item]))


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
