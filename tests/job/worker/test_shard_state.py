"""How long a worker waits before it polls for a due job."""

from __future__ import annotations

from backstay.job.worker.shard_state import JITTER, MANY, PATIENT, ShardState

SECOND = 1_000_000


def test_a_due_job_is_polled_right_after_its_time():
    shard = ShardState(0, [])
    assert shard.delay_until_due(None, 0) == MANY
    assert 2 < shard.delay_until_due(2 * SECOND, 0) <= 2 + JITTER


def test_a_due_job_that_is_not_claimable_is_polled_with_backoff():
    shard = ShardState(0, [])
    pauses = [shard.delay_until_due(0, 0) for _ in range(12)]
    assert max(pauses[:PATIENT]) <= JITTER
    assert 0.06 <= pauses[-1] < 1


def test_only_consecutive_empty_polls_count():
    shard = ShardState(0, [])
    for next_in, jobs in [(0, 1), (30 * SECOND, 1), (30 * SECOND, 0), (None, 0)]:
        for _ in range(12):
            shard.delay_until_due(0, 0)
        shard.delay_until_due(next_in, jobs)
        assert shard.delay_until_due(0, 0) <= JITTER, (next_in, jobs)
