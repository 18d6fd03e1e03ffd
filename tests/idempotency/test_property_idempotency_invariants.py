"""Invariants of the idempotency machine for any order of commands and any clock."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from idempotency_strategies import run_script, scripts

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
from support.agreement.machine_model import BASE, Model

THOROUGH = settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FAR = 2**53


@THOROUGH
@given(script=scripts)
def test_fences_never_decrease_and_time_never_goes_back(script):
    last = seen = 0
    for moment in run_script(script):
        if moment.command is None:
            seen = 0  # the row may have been removed
            continue
        if isinstance(moment.reply, Begun) and moment.reply.since >= moment.now:  # not a resend
            assert moment.reply.fence >= last
            last = max(last, moment.reply.fence)
        if moment.state is not None:
            assert moment.state.seen >= seen
            seen = moment.state.seen


@THOROUGH
@given(script=scripts)
def test_an_outcome_never_changes_until_it_expires_or_is_forgotten(script):
    kept = None
    for moment in run_script(script):
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
def test_only_the_running_ticket_completes_or_renews(script):
    before = None
    for moment in run_script(script):
        if isinstance(moment.reply, (Stored, Renewed)):
            assert before is not None
            assert before.ticket == moment.command.ticket
        if isinstance(moment.reply, Lost) and before is not None and before.phase == RUNNING:
            lapsed = isinstance(moment.command, Renew) and before.until <= max(moment.now, before.seen)
            assert before.ticket != moment.command.ticket or lapsed or _gone(before, moment.now)
        before = moment.state


def _gone(entry, now):
    """Return whether the entry has expired."""
    return not isinstance(step(entry, Renew(FAR, entry.ticket, 0, 1), now).reply, Renewed)


@THOROUGH
@given(script=scripts)
def test_an_expired_command_has_no_effect(script):
    before = None
    for moment in run_script(script):
        if isinstance(moment.reply, Expired):
            assert moment.state == before
            assert moment.wakes == ()
        before = moment.state


@THOROUGH
@given(script=scripts)
def test_every_waiter_that_leaves_the_list_is_woken_or_has_expired(script):
    """A waiter that another ticket's command removes is woken by it, or its own ticket has expired."""
    before = None
    for moment in run_script(script):
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
def test_a_freed_key_wakes_the_first_waiter(script):
    before = None
    for moment in run_script(script):
        freed = isinstance(moment.command, Forget) or (
            isinstance(moment.reply, Abandoned) and moment.reply.was == RUNNING
        )
        if freed and not isinstance(moment.reply, Expired) and moment.state.waiters and before is not None:
            assert moment.wakes[0].payload == moment.state.waiters[0].ticket
        before = moment.state


def test_a_resend_gets_the_same_reply():
    """Begin, Complete and Abandon are idempotent."""
    model = Model(IDEMPOTENCY)
    begin = Begin(FAR, "t", "b", "", 10, "")
    complete = Complete(FAR, "t", 0, 100, failed=False, body=b"x")
    first = model.apply(begin, BASE).reply
    assert model.apply(begin, BASE).reply == first
    stored = model.apply(complete, BASE + 1).reply
    assert model.apply(complete, BASE + 2).reply == stored
    abandon = Abandon(FAR, "u", BASE + 50)
    assert model.apply(abandon, BASE + 3).reply == model.apply(abandon, BASE + 3).reply
