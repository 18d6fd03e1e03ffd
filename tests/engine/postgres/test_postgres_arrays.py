"""psycopg reads each binary array column as it was, whichever fast path encoded it."""

from __future__ import annotations

import pytest
from psycopg.adapt import Transformer
from psycopg.pq import Format

from backstay.engine.postgres.connection.arrays import Bytes, Floats, Numbers, Texts, dump

TEXTS = [
    [],
    ["one"],
    ["same"] * 3,
    ["equally", "longest"],
    ["short", "a longer one"],
    ["", "x"],
    ["é", "b"],
    ["ééé", "abc"],
    ["a" * 127, "b" * 127],
    ["a" * 128, "b" * 128],
    ["a" * 600, "b" * 600],
]


def loaded(column):
    """Decode a column as the server would."""
    return Transformer().get_loader(column.oid, Format.BINARY).load(dump(column))


@pytest.mark.parametrize("items", TEXTS, ids=range(len(TEXTS)))
def test_text_and_bytes_columns_load_as_they_were_dumped(items):
    assert loaded(Texts(items)) == items
    raw = [item.encode() for item in items]
    assert loaded(Bytes(raw)) == raw


@pytest.mark.parametrize("items", [[], [0], [7] * 5, [1, -1, 2**63 - 1, -(2**63)]], ids=range(4))
def test_number_columns_load_as_they_were_dumped(items):
    assert loaded(Numbers(items)) == items
    assert loaded(Floats([item / 2 for item in items])) == [item / 2 for item in items]
