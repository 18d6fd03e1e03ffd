"""What must hold of a key whatever the order of commands and however the clock jumps."""

from __future__ import annotations

from gate_scripts import BASE, Model
from hypothesis import HealthCheck, given, settings
from idempotency_scripts import play, scripts

from backstay.idempotency.machine import (
    COMPLETED,
    FAILED,
    IDEMPOTENCY,
    RUNNING,
    Abandon,
    Abandoned,
    Begin,
    Begun,
    Complete,
    Done,
    Expired,
    Forget,
    Lost,
    Renew,
    Renewed,
    Stored,
    step,
)

THOROUGH = settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FAR = 2**53


@THOROUGH
@given(script=scripts)
def test_fences_grow_with_every_run_and_time_never_goes_back(script):
    last = seen = 0
    for moment in play(script):
        if moment.command is None:
            seen = 0  # the row may have gone
            continue
        if isinstance(moment.reply, Begun) and moment.reply.since >= moment.now:  # not a resend
            assert moment.reply.fence >= last
            last = max(last, moment.reply.fence)
        if moment.state is not None:
            assert moment.state.seen >= seen
            seen = moment.state.seen


@THOROUGH
@given(script=scripts)
def test_an_outcome_never_changes_until_it_ends_or_is_forgotten(script):
    kept = None
    for moment in play(script):
        if isinstance(moment.reply, Done):
            assert kept is not None
            assert (moment.reply.failed, moment.reply.until, moment.reply.body) == kept
        state = moment.state
        if isinstance(moment.reply, Stored) and isinstance(moment.command, Complete) and kept is None:
            kept = (moment.command.failed, moment.reply.until, moment.command.body)
        if state is None or state.phase not in (COMPLETED, FAILED):
            kept = None


@THOROUGH
@given(script=scripts)
def test_only_the_one_who_runs_reports_an_outcome_or_is_renewed(script):
    before = None
    for moment in play(script):
        if isinstance(moment.reply, (Stored, Renewed)):
            assert before is not None
            assert before.ticket == moment.command.ticket
        if isinstance(moment.reply, Lost) and before is not None and before.phase == RUNNING:
            lapsed = isinstance(moment.command, Renew) and before.until <= max(moment.now, before.seen)
            assert before.ticket != moment.command.ticket or lapsed or _gone(before, moment.now)
        before = moment.state


def _gone(entry, now):
    """Its day is over."""
    return not isinstance(step(entry, Renew(FAR, entry.ticket, 0, 1), now).reply, Renewed)


@THOROUGH
@given(script=scripts)
def test_a_command_that_comes_too_late_has_no_effect(script):
    before = None
    for moment in play(script):
        if isinstance(moment.reply, Expired):
            assert moment.state == before
            assert moment.wakes == ()
        before = moment.state


@THOROUGH
@given(script=scripts)
def test_everybody_who_waits_is_told_or_looks_in_time(script):
    """Whoever leaves the list of waiters by somebody else's command is woken by it, or has been silent for its life."""
    before = None
    for moment in play(script):
        state, command = moment.state, moment.command
        if before is not None and command is not None and state is not None:
            now = max(moment.now, before.seen)
            stay = {w.ticket for w in state.waiters}
            woken = {wake.payload.split()[0] for wake in moment.wakes}
            for waiter in before.waiters:
                left_by_itself = waiter.ticket == getattr(command, "ticket", "")
                assert waiter.ticket in stay | woken or left_by_itself or waiter.alive <= now
        before = state


@THOROUGH
@given(script=scripts)
def test_a_free_key_wakes_the_first_who_waits(script):
    before = None
    for moment in play(script):
        freed = isinstance(moment.command, Forget) or (
            isinstance(moment.reply, Abandoned) and moment.reply.was == RUNNING
        )
        if freed and not isinstance(moment.reply, Expired) and moment.state.waiters and before is not None:
            assert moment.wakes[0].payload == moment.state.waiters[0].ticket
        before = moment.state


def test_a_resend_is_answered_as_the_first_copy_was():
    """Begin, Complete and Abandon may arrive twice without harm."""
    model = Model(room=IDEMPOTENCY)
    begin = Begin(FAR, "t", "b", "", 10, "")
    complete = Complete(FAR, "t", 0, 100, failed=False, body=b"x")
    first = model.apply(begin, BASE).reply
    assert model.apply(begin, BASE).reply == first
    stored = model.apply(complete, BASE + 1).reply
    assert model.apply(complete, BASE + 2).reply == stored
    abandon = Abandon(FAR, "u", BASE + 50)
    assert model.apply(abandon, BASE + 3).reply == model.apply(abandon, BASE + 3).reply
