"""What is true of the gate after any history at all."""

from __future__ import annotations

import pytest
from gate_scripts import BASE, Model, Moment, play, scripts, unswept
from hypothesis import HealthCheck, given, settings

from backstay.engine.base import Expired
from backstay.gate.machine import (
    DAY,
    UNLIMITED,
    VERSION,
    Acquire,
    Gate,
    Granted,
    Release,
    Who,
    _fits,
    _taken,
    step,
)

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
    """Who occupies a place, held or offered: (exclusively, ticket)."""
    held = [(h.exclusive, h.ticket) for h in gate.holders]
    return held + [(w.exclusive, w.ticket) for w in gate.queue if w.offer > 0]


def states(history: list[Moment]) -> list[Gate]:
    return [m.state for m in history if m.state is not None]


@OFTEN
@given(script=unswept)
def test_an_exclusive_place_is_the_only_one(script):
    for gate in states(play(script)):
        taken = places(gate)
        assert len(taken) <= 1 or not any(exclusive for exclusive, _ in taken)


@OFTEN
@given(script=unswept)
def test_no_more_places_are_taken_than_there_are(script):
    for gate in states(play(script)):
        assert gate.capacity == UNLIMITED or len(places(gate)) <= gate.capacity


@OFTEN
@given(script=unswept)
def test_no_place_stays_idle_while_somebody_waits_for_it(script):
    for gate in states(play(script)):
        waiting = [w for w in gate.queue if w.offer == 0]
        if waiting:
            assert not _fits(gate.capacity, _taken(gate), waiting[0].exclusive)


@OFTEN
@given(script=unswept)
def test_nobody_overtakes_and_no_ticket_is_there_twice(script):
    before: list[str] = []
    for gate in states(play(script)):
        queue = [w.ticket for w in gate.queue]
        tickets = queue + [h.ticket for h in gate.holders]
        assert len(tickets) == len(set(tickets))
        stayed = [t for t in before if t in queue]
        came = [t for t in queue if t not in before]
        assert queue == stayed + came or _reentered(before, queue)
        before = queue


def _reentered(before: list[str], queue: list[str]) -> bool:
    """A ticket that lapsed and came back stands at the end; all others keep their order."""
    back = queue[-1]
    return [t for t in before if t in queue and t != back] == queue[:-1]


@OFTEN
@given(script=unswept)
def test_nobody_is_served_past_a_waiter_that_is_awake(script):
    """Served: offered a place, or granted one that was not kept for it already."""
    before = Gate(VERSION, 0, 0, 0)
    for gate in states(play(script)):
        kept = {w.ticket for w in before.queue if w.offer > gate.seen} | {h.ticket for h in before.holders}
        awake = [w.ticket for w in gate.queue if w.offer == 0]
        line = [w.ticket for w in before.queue]
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
    for moment in play(script):
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
def test_what_has_ended_is_not_there(script):
    for moment in play(script):
        gate = moment.state
        if gate is None or isinstance(moment.reply, Expired):
            continue
        assert all(h.until > gate.seen for h in gate.holders)
        assert all(max(w.alive, w.offer) > gate.seen for w in gate.queue)
        assert all(g.until > gate.seen for g in gate.gone)


@OFTEN
@given(script=unswept)
def test_a_command_that_comes_too_late_has_no_effect(script):
    model = Model()
    for moment in play(script):
        assert moment.command is not None
        done = step(model.state, moment.command, moment.now)
        late = max(moment.now, model.state.seen if model.state else 0) > moment.command.not_after
        if late:
            assert isinstance(done.reply, Expired)
            assert done.state is model.state
            assert not done.write
            assert not done.wakes
        elif isinstance(done.reply, Expired):  # a ticket that was withdrawn
            assert done.state is not None
            tickets = [x.ticket for x in (*done.state.holders, *done.state.queue)]
            assert isinstance(moment.command, Acquire)
            buried = moment.command.ticket
            assert buried not in tickets or (model.state and buried in [w.ticket for w in model.state.queue])
        model.apply(moment.command, moment.now)


@OFTEN
@given(script=scripts)
def test_a_row_past_keep_until_may_go_and_nobody_can_tell(script):
    """Clocks of one engine are less than a day apart: that is what `keep_until` counts on."""
    swept, whole = Model(), Model()
    floor = 0
    for moment in play(script):
        now = max(moment.now, floor)
        if moment.command is None:
            if swept.state is not None and swept.keep_until < now:
                floor = now - DAY + 1
            swept.sweep(now)
        else:
            assert swept.apply(moment.command, now).reply == whole.apply(moment.command, now).reply


@OFTEN
@given(script=unswept)
def test_keep_until_is_a_day_after_everything_the_row_knows(script):
    model = Model()
    for moment in play(script):
        assert moment.command is not None
        model.apply(moment.command, moment.now)
        if (gate := model.state) is not None:
            ends = [h.until for h in gate.holders] + [w.alive for w in gate.queue] + [w.offer for w in gate.queue]
            ends += [g.until for g in gate.gone] + [gate.last, gate.seen, BASE - DAY]
            assert model.keep_until == max(ends) + DAY


def test_a_ticket_is_granted_in_the_mode_it_queued_in():
    """An offer was made to a reader beside another reader; a writer cannot walk in on it."""

    def ask(ticket, exclusive):
        return Acquire(BASE + DAY, ticket, ticket, exclusive, UNLIMITED, 5_000_000, "inbox", 9, Who())

    state = None
    for command in (ask("w", True), ask("r1", False), ask("r2", False), Release(BASE + DAY, "w", "", 0, 0)):
        state = step(state, command, BASE).state
    state = step(state, ask("r1", False), BASE).state
    state = step(state, ask("r2", True), BASE).state
    assert not any(holder.exclusive for holder in state.holders)
