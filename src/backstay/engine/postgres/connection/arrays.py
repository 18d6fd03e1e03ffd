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
#: An element is sent after its length (four bytes). For lengths below this, which most are, these bytes are
#: precomputed.
_SHORT = 512
_LENGTHS = [_LENGTH.pack(size) for size in range(_SHORT)]
#: A length below this is encoded as four bytes that are ASCII characters. So the lengths and the texts of a column can
#: be joined as one string, which is then encoded in one call.
_ASCII = 128
#: The encoding of an array with one element is cached if the element is shorter than this: most names are short and
#: recur; most ids and arguments are longer and unique.
_NAME = 24


def _prefix_length(raw: bytes) -> bytes:
    size = len(raw)
    return (_LENGTHS[size] if size < _SHORT else _LENGTH.pack(size)) + raw


class Array:
    """One column of rows, as a parameter of `unnest`."""

    __slots__ = ("dumped", "items")

    element: ClassVar[int]
    oid: ClassVar[int]

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        #: The cached encoding. A batch sends its column of names twice: to lock the rows, then to write them.
        self.dumped: bytes | None = None

    def pack(self) -> bytes:
        """Encode the elements, each preceded by its length."""
        items = self.items
        if not items:
            return b""
        if items.count(items[0]) == len(items):  # encode a value once that all rows share, as in many columns
            return self._pack_items(items[:1]) * len(items)
        return self._pack_items(items)

    def _pack_items(self, items: Sequence[Any]) -> bytes:
        raise NotImplementedError

    def is_cacheable(self, item: Any) -> bool:
        """Whether `dump` caches the encoding of an array that has only this item: only if the item is short, because
        short items often recur.
        """
        return len(item) < _NAME


class Bytes(Array):
    element, oid = 17, 1001

    def _pack_items(self, items: Sequence[bytes]) -> bytes:
        if len(set(map(len, items))) == 1:
            length = _LENGTH.pack(len(items[0]))
            return length + length.join(items)
        return b"".join([_prefix_length(item) for item in items])


class RowLocations(Bytes):
    """The locations of rows (PostgreSQL's `ctid`)."""

    element, oid = 27, 1010


class Texts(Array):
    element, oid = 25, 1009

    def _pack_items(self, items: Sequence[str]) -> bytes:
        if len(items[0]) < _ASCII and len(set(map(len, items))) == 1:  # ids have equal lengths
            length = f"\0\0\0{chr(len(items[0]))}"
            text = length + length.join(items)
            if text.isascii():
                return text.encode()
        return b"".join([_prefix_length(item.encode()) for item in items])


class Numbers(Array):
    element, oid = 20, 1016

    def is_cacheable(self, item: int) -> bool:
        return True

    def _pack_items(self, items: Sequence[int]) -> bytes:
        return b"".join(map(_BIGINT.pack, repeat(8), items))


class Floats(Array):
    element, oid = 701, 1022

    def is_cacheable(self, item: float) -> bool:
        return False  # 0.0 == -0.0, so a cache would return the encoding of one for the other

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
    """Base of the psycopg dumpers for `Array` classes."""

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
    """Register the dumpers, so that the connection accepts `Array` objects as parameters."""
    for kind, dumper in ((Bytes, BytesDumper), (Texts, TextsDumper), (Numbers, NumbersDumper), (Floats, FloatsDumper)):
        connection.adapters.register_dumper(kind, dumper)
