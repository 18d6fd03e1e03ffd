"""What must hold of a limit whatever comes: how much is admitted in any window, and that its times are exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limit_scripts import BASE, DAY, Draft, Model, Script, play, scripts

from backstay.limit import machine
from backstay.limit.machine import Admitted, Denied, Done, Expired, Hit, Peek, Refund, step

pytestmark = pytest.mark.timeout(600)
OFTEN = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

#: A cost, when it comes (µs after the one before, or a part of the window) and how long it would wait.
_hit = st.tuples(
    st.sampled_from((0, 0, 1, 999, 1000, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999, 1.0, 1.5)),
    st.sampled_from((1, 1, 1, 2, 5)),
    st.sampled_from((0, 0, 0, 0.2, 1.0)),
)
_limits = st.sampled_from((1, 2, 3, 5, 7, 10))
_windows = st.sampled_from((1, 2, 7, 10, 100, 1000, 60_000))
_crowds = st.lists(_hit, min_size=10, max_size=80)


def crowd(law, limit, window, hits, start=0.0):
    """What a crowd is granted: moments and costs."""
    (rule,) = Script(law, ((limit, window, limit),), ()).rules()
    span = window * 1000
    now, state, granted = BASE - BASE % span + int(start * span), None, []
    for after, cost, wait in hits:
        now += int(after * span) if isinstance(after, float) else after
        done = step(state, Hit(now + DAY, law, (rule,), min(cost, limit), int(wait * span)), now)
        if done.write:
            state = done.state
        if isinstance(done.reply, Admitted):
            granted.append((done.reply.at, min(cost, limit)))
    return granted


def worst(granted, window):
    """The most that was granted in any trailing window."""
    span = window * 1000
    return max(
        (sum(cost for when, cost in granted if at - span < when <= at) for at, _ in granted),
        default=0,
    )


@OFTEN
@given(limit=_limits, window=_windows, hits=_crowds)
def test_an_exact_window_never_holds_more_than_the_limit(limit, window, hits):
    assert worst(crowd(3, limit, window, hits), window) <= limit


@OFTEN
@given(law=st.sampled_from((0, 1, 2)), limit=_limits, window=_windows, hits=_crowds, start=st.sampled_from((0.0, 0.99)))
def test_the_other_windows_stay_within_their_bounds(law, limit, window, hits, start):
    bound = 2 * limit - 1 if law == 1 else 2 * limit
    assert worst(crowd(law, limit, window, hits, start), window) <= bound


def test_the_bounds_are_reached():
    """They are no smaller than the docs say: whoever comes at the worst moments gets that much."""
    late = [(0.999, 1, 0)] + [(0, 1, 0)] * 9
    assert worst(crowd(0, 10, 1000, [*late, (0.001, 1, 0), *[(0, 1, 0)] * 9]), 1000) == 20
    assert worst(crowd(2, 10, 1000, [(0, 1, 0)] * 10 + [(0.1, 1, 0)] * 10), 1000) == 19
    assert worst(crowd(1, 10, 1000, [*late, (0.101, 1, 0), *[(0.1, 1, 0)] * 8]), 1000) == 19


_deed = st.tuples(
    st.sampled_from((0, 0, 0, 1, 1000, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0, 1.5)),
    st.sampled_from(("hit", "wait", "wait", "cancel", "cancel first", "refund")),
    st.sampled_from((1, 1, 2, 5, 10)),
)


@settings(OFTEN, max_examples=1000)
@given(law=st.integers(0, 3), limit=_limits, window=_windows, deeds=st.lists(_deed, min_size=8, max_size=60))
def test_what_is_given_back_admits_nobody_beyond_the_bound(law, limit, window, deeds):
    """Waiters who are cancelled anywhere in the line, and hits given back at once, also while others wait."""
    (rule,) = Script(law, ((limit, window, limit),), ()).rules()
    span = window * 1000
    now, state, granted = BASE, None, []
    for after, deed, wanted in deeds:
        now += int(after * span) if isinstance(after, float) else after
        cost = min(wanted, limit)
        command = Hit(now + DAY, law, (rule,), cost, 10 * span if deed == "wait" else 0)
        if deed.startswith("cancel"):
            waiting = [one for one in granted if one[0] > now]
            if not waiting:
                continue
            given = min(waiting) if deed == "cancel first" else waiting[wanted % len(waiting)]
            command = Refund(now + DAY, law, (rule,), given[1], given[0])
            granted.remove(given)
        elif deed == "refund":
            fresh = [one for one in granted if one[0] == now]
            if not fresh:
                continue
            command = Refund(now + DAY, law, (rule,), fresh[0][1])
            granted.remove(fresh[0])
        done = step(state, command, now)
        state = done.state if done.write else state
        if isinstance(done.reply, Admitted):
            granted.append((done.reply.at, cost))
    assert worst(granted, window) <= {0: 2 * limit, 1: 2 * limit - 1, 2: 2 * limit, 3: limit}[law]
    if law == 0:
        windows = {at // span for at, _ in granted}
        assert all(sum(cost for at, cost in granted if at // span == one) <= limit for one in windows)


@OFTEN
@given(script=scripts)
def test_retry_after_is_exact(script):
    """At that very moment the same hit is admitted, a millisecond before it is not."""
    for moment in play(script):
        match moment.command, moment.reply:
            case Hit() as hit, Denied(at=at, retry=retry):
                hit = replace_command(hit, not_after=at + 400 * DAY, wait=0)
                assert retry > hit.wait
                assert isinstance(step(moment.state, hit, at + retry).reply, Admitted)
                early = at + retry - min(1000, retry)
                assert isinstance(step(moment.state, hit, early).reply, Denied)
                assert isinstance(step(moment.state, hit, at + retry - 1).reply, Denied)


def replace_command(command, **changes):
    from msgspec.structs import replace

    return replace(command, **changes)


@OFTEN
@given(script=scripts)
def test_a_denied_hit_and_a_peek_leave_no_trace(script):
    before = None
    for moment in play(script):
        if isinstance(moment.reply, (Denied, Expired)) or isinstance(moment.command, Peek):
            assert moment.state == before
        before = moment.state


@OFTEN
@given(script=scripts)
def test_a_peek_says_what_a_hit_would_hear(script):
    for moment in play(script):
        if isinstance(moment.command, Peek) and not isinstance(moment.reply, Expired):
            peek = moment.command
            hit = step(moment.state, Hit(peek.not_after, peek.law, peek.rules, peek.cost), moment.now).reply
            assert type(hit) is type(moment.reply)
            if isinstance(hit, Denied):
                assert hit == moment.reply


@OFTEN
@given(script=scripts)
def test_what_remains_can_be_taken_and_not_one_more(script):
    for moment in play(script):
        if not isinstance(moment.command, Peek) or not isinstance(moment.reply, Admitted) or len(script.rates) > 1:
            continue
        peek, left = moment.command, moment.reply.remaining
        for cost, kind in ((left, Admitted), (left + 1, Denied)):
            if cost <= peek.rules[0].burst:
                hit = Hit(peek.not_after, peek.law, peek.rules, cost)
                assert isinstance(step(moment.state, hit, moment.now).reply, kind)


@OFTEN
@given(script=scripts)
def test_a_record_past_its_time_is_as_good_as_none(script):
    forward = tuple(replace(d, after=abs(d.after), other=0) if isinstance(d, Draft) else d for d in script.drafts)
    model = Model(monotone=True)
    history = play(replace(script, drafts=forward), model)

    class Hoarder(Model):
        def sweep(self, now):
            self._latest = max(self._latest, now)

    hoarder = Hoarder(monotone=True)
    for moment in history:
        if moment.command is None:
            hoarder.sweep(moment.now)
        else:
            assert hoarder.apply(moment.command, moment.now).reply == moment.reply


@OFTEN
@given(script=scripts)
def test_whoever_waits_is_overtaken_by_nobody(script):
    """Moments are handed out in order, as long as nothing is given back."""
    latest = 0
    for moment in play(script):
        if isinstance(moment.command, (machine.Refund, machine.Reset)) or moment.state is None:
            latest = 0
        if isinstance(moment.command, Hit) and isinstance(moment.reply, Admitted):
            assert moment.reply.at // 1000 >= latest // 1000
            latest = moment.reply.at


@OFTEN
@given(law=st.integers(0, 3), limit=_limits, window=_windows, hits=_crowds)
def test_a_hit_that_is_given_back_at_once_was_never_there(law, limit, window, hits):
    (rule,) = Script(law, ((limit, window, limit),), ()).rules()
    now, state = BASE, None
    for after, wanted, _ in hits:
        now += int(after * window * 1000) if isinstance(after, float) else after
        cost = min(wanted, limit)
        peek = Peek(now + DAY, law, (rule,), 1)
        done = step(state, Hit(now + DAY, law, (rule,), cost), now)
        if not done.write:
            continue
        before = step(state, peek, now).reply
        back = step(done.state, Refund(now + DAY, law, (rule,), cost), now)
        assert isinstance(back.reply, Done)
        after_all = step(back.state, peek, now).reply
        assert (after_all.count, after_all.remaining) == (before.count, before.remaining)
        state = done.state
