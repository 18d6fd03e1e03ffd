"""The checker of job histories: violations, the time from a kill to the restart, attempts that never started."""

from __future__ import annotations

import pytest

from backstay.testing.histories.job_history import END, START, FinalRecord, Note, check

DONE = {7: FinalRecord(state="completed", fence=30, result=30, attempt=3)}


def history(attempt):
    """Return the notes of a job that started in process 1, which was killed at 10, and at 14 again in process 2."""
    return [
        Note(START, 7, 10, 1, 9.5, 1),
        Note(START, 7, 30, 2, 14.0, attempt),
        Note(END, 7, 30, 2, 14.1, attempt),
    ]


def test_the_time_from_a_kill_to_the_restart_is_measured():
    report = check(history(attempt=2), DONE, {1: 10.0})
    assert (report.violations, report.restarts, report.never_started) == ([], [4.0], 0)


def test_a_claimed_attempt_that_never_started_is_counted_and_takes_one_more_lease():
    report = check(history(attempt=3), DONE, {1: 10.0, 3: 11.0})
    assert (report.violations, report.restarts, report.never_started) == ([], [2.0], 1)


def test_a_retry_without_a_kill_is_not_counted_as_a_restart():
    assert check(history(attempt=2), DONE, {}).restarts == []


@pytest.mark.parametrize(
    ("outcome", "violation"),
    [
        (None, "lost"),
        (FinalRecord("pending", 30, None, 3), "stuck"),
        (FinalRecord("completed", 10, 10, 3), "begun under 30"),
        (FinalRecord("completed", 30, 10, 3), "with the result of 10"),
    ],
)
def test_each_kind_of_violation_is_reported(outcome, violation):
    assert violation in check(history(attempt=2), {7: outcome}, {}).violations[0]


def test_a_completed_job_without_an_attempt_is_a_violation():
    assert "no worker ran it" in check([], DONE, {}).violations[0]


def stale(*jobs, at=15.0):
    """Return notes in which process 1 starts these jobs under its older fence, after process 2 has started them."""
    notes = [note._replace(n=n) for n in jobs for note in history(attempt=2)[1:]]
    return [*notes, *(Note(START, n, 10, 1, at, 1) for n in jobs)]


def test_an_attempt_under_an_older_fence_is_a_violation():
    assert "fences did not grow" in check(stale(7), DONE, {}).violations[0]
    assert "fences did not grow" in check(stale(7), DONE, {}, {1: [12.0], 2: [14.9]}).violations[0]


def test_each_pause_of_a_worker_excuses_one_stale_start():
    assert check(stale(7), DONE, {}, {1: [14.9]}).violations == []
    (violation,) = check(stale(7, 8), {**DONE, 8: DONE[7]}, {}, {1: [14.9]}).violations
    assert violation.startswith("job 8: fences did not grow")
