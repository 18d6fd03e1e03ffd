"""How long a worker waits for what is said to be due."""

from __future__ import annotations

from backstay.job.worker.shard_state import JITTER, MANY, PATIENT, Shard

SECOND = 1_000_000


def test_what_is_due_is_looked_for_right_behind_its_time():
    shard = Shard(0, [])
    assert shard.due_in(None, 0) == MANY
    assert 2 < shard.due_in(2 * SECOND, 0) <= 2 + JITTER


def test_what_is_due_and_not_to_be_had_is_looked_for_less_and_less_often():
    shard = Shard(0, [])
    pauses = [shard.due_in(0, 0) for _ in range(12)]
    assert max(pauses[:PATIENT]) <= JITTER
    assert 0.06 <= pauses[-1] < 1


def test_looks_in_vain_count_in_a_row_only():
    shard = Shard(0, [])
    for next_in, jobs in [(0, 1), (30 * SECOND, 1), (30 * SECOND, 0), (None, 0)]:
        for _ in range(12):
            shard.due_in(0, 0)
        shard.due_in(next_in, jobs)
        assert shard.due_in(0, 0) <= JITTER, (next_in, jobs)
