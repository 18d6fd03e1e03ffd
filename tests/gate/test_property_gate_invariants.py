"""Invariants of the gate machine after any history."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from backstay.engine.base import Expired
from backstay.gate.commands import Acquire, CallerIdentity, Granted, Release
from backstay.gate.machine import DAY, GATE, UNLIMITED, VERSION, Gate, _fits, _list_taken, step
from support.agreement.gate_strategies import run_script, scripts, unswept
from support.agreement.machine_model import BASE, Model, Moment

#: Shrinking a failure takes longer than finding it.
pytestmark = pytest.mark.timeout(600)
OFTEN = settings(
    max_examples=500,
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)


def places(gate: Gate) -> list[tuple[bool, str]]:
    """Return the (exclusive, ticket) of every place that is held or offered."""
    held = [(h.exclusive, h.ticket) for h in gate.holders]
    return held + [(w.exclusive, w.ticket) for w in gate.queue if w.offer > 0]


def states(history: list[Moment]) -> list[Gate]:
    return [m.state for m in history if m.state is not None]


@OFTEN
@given(script=unswept)
def test_an_exclusive_place_excludes_all_others(script):
    for gate in states(run_script(script)):
        taken = places(gate)
        assert len(taken) <= 1 or not any(exclusive for exclusive, _ in taken)


@OFTEN
@given(script=unswept)
def test_places_never_exceed_the_capacity(script):
    for gate in states(run_script(script)):
        assert gate.capacity == UNLIMITED or len(places(gate)) <= gate.capacity


@OFTEN
@given(script=unswept)
def test_no_place_stays_idle_while_a_waiter_fits(script):
    for gate in states(run_script(script)):
        waiting = [w for w in gate.queue if w.offer == 0]
        if waiting:
            assert not _fits(gate.capacity, _list_taken(gate), waiting[0].exclusive)


@OFTEN
@given(script=unswept)
def test_the_queue_is_first_in_first_out_and_tickets_are_unique(script):
    before: list[str] = []
    for gate in states(run_script(script)):
        queue = [w.ticket for w in gate.queue]
        tickets = queue + [h.ticket for h in gate.holders]
        assert len(tickets) == len(set(tickets))
        stayed = [t for t in before if t in queue]
        came = [t for t in queue if t not in before]
        assert queue == stayed + came or _reentered(before, queue)
        before = queue


def _reentered(before: list[str], queue: list[str]) -> bool:
    """Return whether only the last ticket is out of order: it expired and re-entered at the tail."""
    back = queue[-1]
    return [t for t in before if t in queue and t != back] == queue[:-1]


@OFTEN
@given(script=unswept)
def test_no_ticket_is_served_before_a_live_waiter_ahead_of_it(script):
    """A ticket is served when it gets an offer, or a grant without an earlier offer."""
    before = Gate(VERSION, 0, 0, 0)
    for gate in states(run_script(script)):
        kept = {w.ticket for w in before.queue if w.offer > gate.seen} | {h.ticket for h in before.holders}
        awake = [w.ticket for w in gate.queue if w.offer == 0]
        # A waiter whose ticket was removed re-enters at the tail.
        still = {(w.ticket, w.since) for w in gate.queue}
        line = [w.ticket for w in before.queue if w.alive > gate.seen or (w.ticket, w.since) in still]
        line += [w.ticket for w in gate.queue if w.ticket not in line]
        served = [w.ticket for w in gate.queue if w.offer > 0] + [h.ticket for h in gate.holders]
        for ticket in set(served) - kept:
            ahead = line[: line.index(ticket)] if ticket in line else line
            assert not set(ahead) & set(awake)
        before = gate


@OFTEN
@given(script=unswept)
def test_the_fence_grows_with_every_grant_and_time_never_goes_back(script):
    last = seen = 0
    holding: dict[str, int] = {}
    for moment in run_script(script):
        gate = moment.state
        if isinstance(moment.reply, Granted):
            assert isinstance(moment.command, Acquire)
            ticket, fence = moment.command.ticket, moment.reply.fence
            assert fence > last or holding.get(ticket) == fence
        if gate is not None:
            assert gate.last >= last
            assert gate.seen >= seen
            assert all(h.fence <= gate.last for h in gate.holders)
            last, seen = gate.last, gate.seen
            holding = {h.ticket: h.fence for h in gate.holders}


@OFTEN
@given(script=unswept)
def test_ended_holders_waiters_and_withdrawn_tickets_are_removed(script):
    for moment in run_script(script):
        gate = moment.state
        if gate is None or isinstance(moment.reply, Expired):
            continue
        assert all(h.until > gate.seen for h in gate.holders)
        assert all(max(w.alive, w.offer) > gate.seen for w in gate.queue)
        assert all(g.until > gate.seen for g in gate.gone)


@OFTEN
@given(script=unswept)
def test_an_expired_command_has_no_effect(script):
    model = Model(GATE)
    for moment in run_script(script):
        assert moment.command is not None
        done = step(model.state, moment.command, moment.now)
        late = max(moment.now, model.state.seen if model.state else 0) > moment.command.not_after
        if late:
            assert isinstance(done.reply, Expired)
            assert done.state is model.state
            assert not done.write
            assert not done.wakes
        elif isinstance(done.reply, Expired):  # a withdrawn ticket
            assert done.state is not None
            tickets = [x.ticket for x in (*done.state.holders, *done.state.queue)]
            assert isinstance(moment.command, Acquire)
            buried = moment.command.ticket
            assert buried not in tickets or (model.state and buried in [w.ticket for w in model.state.queue])
        model.apply(moment.command, moment.now)


@OFTEN
@given(script=scripts)
def test_removing_a_row_past_keep_until_changes_no_reply(script):
    """`keep_until` relies on clocks of one engine that differ by less than a day."""
    swept, whole = Model(GATE), Model(GATE)
    floor = 0
    for moment in run_script(script):
        now = max(moment.now, floor)
        if moment.command is None:
            if swept.state is not None and swept.keep_until < now:
                floor = now - DAY + 1
            swept.sweep(now)
        else:
            assert swept.apply(moment.command, now).reply == whole.apply(moment.command, now).reply


@OFTEN
@given(script=unswept)
def test_keep_until_is_a_day_after_the_latest_time_in_the_row(script):
    model = Model(GATE)
    for moment in run_script(script):
        assert moment.command is not None
        model.apply(moment.command, moment.now)
        if (gate := model.state) is not None:
            ends = [h.until for h in gate.holders] + [w.alive for w in gate.queue] + [w.offer for w in gate.queue]
            ends += [g.until for g in gate.gone] + [gate.last, gate.seen, BASE - DAY]
            assert model.keep_until == max(ends) + DAY


def test_a_ticket_is_granted_only_in_the_mode_it_queued_in():
    """A writer cannot use an offer that was made to a reader."""

    def ask(ticket, exclusive):
        return Acquire(BASE + DAY, ticket, ticket, exclusive, UNLIMITED, 5_000_000, "inbox", 9, CallerIdentity())

    state = None
    for command in (ask("w", True), ask("r1", False), ask("r2", False), Release(BASE + DAY, "w", "", 0, 0)):
        state = step(state, command, BASE).state
    state = step(state, ask("r1", False), BASE).state
    state = step(state, ask("r2", True), BASE).state
    assert not any(holder.exclusive for holder in state.holders)
