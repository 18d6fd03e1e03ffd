"""Ids that callers make: each is new, later ones are larger, and the shard can be read from them."""

from __future__ import annotations

import pytest

from backstay.job import ids
from backstay.job.ids import Ids, shard_of


@pytest.fixture
def clock(monkeypatch):
    """Milliseconds, standing still unless a test sets them."""
    at = {"now": 1_700_000_000_001}
    monkeypatch.setattr(ids.time, "time_ns", lambda: at["now"] * 1_000_000)
    return at


def test_later_ids_are_larger_however_they_are_made(clock):
    make = Ids()
    made = [make.new(0), *make.new_many(0, 500), make.new(0), *make.new_many(0, 2), make.new(0)]
    clock["now"] -= 5000  # set back
    made += [*make.new_many(0, 3), make.new(0)]
    clock["now"] += 5001
    made += [*make.new_many(0, 3), make.new(0)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {len(id_) for id_ in made} == {30}


def test_more_ids_than_a_millisecond_has_room_for_stay_in_order(clock):
    make = Ids()
    make._counter, make._millis = 2**20 - 3, clock["now"]
    made = [*make.new_many(0, 5), make.new(0)]
    assert made == sorted(made)
    assert len(set(made)) == 6


def test_several_ids_may_be_none_and_name_their_shard():
    make = Ids()
    assert make.new_many(3, 0) == []
    assert [shard_of(id_) for id_ in make.new_many(200, 2)] == [200, 200]
