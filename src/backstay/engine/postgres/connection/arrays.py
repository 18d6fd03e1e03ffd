"""Encode columns as PostgreSQL arrays in one pass: psycopg's own dumpers visit every element several times."""

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
#: Most elements are short: their encoded lengths are precomputed.
_SHORT = 512
_LENGTHS = [_LENGTH.pack(size) for size in range(_SHORT)]
#: A length below this is one ASCII character, so it can be joined with the elements as text.
_ASCII = 128
#: Elements shorter than this are worth caching: most names are, most ids and arguments (which are unique) are not.
_NAME = 24


def _sized(raw: bytes) -> bytes:
    size = len(raw)
    return (_LENGTHS[size] if size < _SHORT else _LENGTH.pack(size)) + raw


class Array:
    """One column of rows, as a parameter of `unnest`."""

    __slots__ = ("dumped", "items")

    element: ClassVar[int]
    oid: ClassVar[int]

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        #: The cached encoding: names are sent twice, for the lock and for the write.
        self.dumped: bytes | None = None

    def pack(self) -> bytes:
        """Encode the elements, each preceded by its length."""
        items = self.items
        if not items:
            return b""
        if items.count(items[0]) == len(items):  # many columns have the same value in all rows
            return self._pack_items(items[:1]) * len(items)
        return self._pack_items(items)

    def _pack_items(self, items: Sequence[Any]) -> bytes:
        raise NotImplementedError

    def is_cacheable(self, item: Any) -> bool:
        """Whether the encoding of a one-element array is worth caching: it may recur and is small."""
        return len(item) < _NAME


class Bytes(Array):
    element, oid = 17, 1001

    def _pack_items(self, items: Sequence[bytes]) -> bytes:
        if len(set(map(len, items))) == 1:
            length = _LENGTH.pack(len(items[0]))
            return length + length.join(items)
        return b"".join([_sized(item) for item in items])


class RowLocations(Bytes):
    """Row locations (`ctid`)."""

    element, oid = 27, 1010


class Texts(Array):
    element, oid = 25, 1009

    def _pack_items(self, items: Sequence[str]) -> bytes:
        if len(items[0]) < _ASCII and len(set(map(len, items))) == 1:  # ids all have the same length
            length = f"\0\0\0{chr(len(items[0]))}"
            text = length + length.join(items)
            if text.isascii():
                return text.encode()
        return b"".join([_sized(item.encode()) for item in items])


class Numbers(Array):
    element, oid = 20, 1016

    def is_cacheable(self, item: int) -> bool:
        return True

    def _pack_items(self, items: Sequence[int]) -> bytes:
        return b"".join(map(_BIGINT.pack, repeat(8), items))


class Floats(Array):
    element, oid = 701, 1022

    def is_cacheable(self, item: float) -> bool:
        return False  # 0.0 and -0.0 are the same cache key

    def _pack_items(self, items: Sequence[float]) -> bytes:
        return b"".join(map(_DOUBLE.pack, repeat(8), items))


def dump(column: Array) -> bytes:
    """Encode a column as a one-dimensional array without NULLs, with the lower bound 1."""
    if column.dumped is None:
        items = column.items
        if len(items) == 1 and column.is_cacheable(items[0]):
            column.dumped = _dump_single(column.oid, items[0])
        else:
            column.dumped = _dump(column)
    return column.dumped


def _dump(column: Array) -> bytes:
    return _HEAD.pack(1, 0, column.element, len(column.items), 1) + column.pack()


#: Column classes by the OID of their array type.
_KINDS: dict[int, type[Array]] = {kind.oid: kind for kind in (Bytes, RowLocations, Texts, Numbers)}


@lru_cache(maxsize=1024)
def _dump_single(oid: int, item: Any) -> bytes:
    """Encode a one-element array. Cached: in single-row calls most columns have recurring values."""
    return _dump(_KINDS[oid]([item]))


class ArrayDumper(Dumper):
    """Base of the psycopg dumpers for columns."""

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


def register_dumpers(connection: psycopg.Connection[Any]) -> None:
    """Register the dumpers, so that a connection accepts columns as parameters."""
    for kind, dumper in ((Bytes, BytesDumper), (Texts, TextsDumper), (Numbers, NumbersDumper), (Floats, FloatsDumper)):
        connection.adapters.register_dumper(kind, dumper)
