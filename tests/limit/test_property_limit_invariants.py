"""Invariants of the limit machine: the admissions in any window, and exact times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limit_strategies import DAY, Draft, Script, run_script, scripts

from backstay.limit import machine
from backstay.limit.machine import LIMIT, Admitted, Denied, Done, Expired, Hit, Peek, Refund, step
from support.agreement.machine_model import BASE, Model

pytestmark = pytest.mark.timeout(600)
OFTEN = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

#: The delay after the hit before (in µs, or as a fraction of the window), the cost and the accepted wait.
_hit = st.tuples(
    st.sampled_from((0, 0, 1, 999, 1000, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999, 1.0, 1.5)),
    st.sampled_from((1, 1, 1, 2, 5)),
    st.sampled_from((0, 0, 0, 0.2, 1.0)),
)
_limits = st.sampled_from((1, 2, 3, 5, 7, 10))
_windows = st.sampled_from((1, 2, 7, 10, 100, 1000, 60_000))
_hit_lists = st.lists(_hit, min_size=10, max_size=80)


def admit_hits(algorithm_id, limit, window, hits, start=0.0):
    """Return the (time, cost) of every admitted hit."""
    (rule,) = Script(algorithm_id, ((limit, window, limit),), ()).rules()
    span = window * 1000
    now, state, granted = BASE - BASE % span + int(start * span), None, []
    for after, cost, wait in hits:
        now += int(after * span) if isinstance(after, float) else after
        done = step(state, Hit(now + DAY, algorithm_id, (rule,), min(cost, limit), int(wait * span)), now)
        if done.write:
            state = done.state
        if isinstance(done.reply, Admitted):
            granted.append((done.reply.at, min(cost, limit)))
    return granted


def largest_window(granted, window):
    """Return the largest sum of costs in any trailing window."""
    span = window * 1000
    return max(
        (sum(cost for when, cost in granted if at - span < when <= at) for at, _ in granted),
        default=0,
    )


@OFTEN
@given(limit=_limits, window=_windows, hits=_hit_lists)
def test_an_exact_window_never_holds_more_than_the_limit(limit, window, hits):
    assert largest_window(admit_hits(3, limit, window, hits), window) <= limit


@OFTEN
@given(
    algorithm_id=st.sampled_from((0, 1, 2)),
    limit=_limits,
    window=_windows,
    hits=_hit_lists,
    start=st.sampled_from((0.0, 0.99)),
)
def test_the_approximate_windows_stay_within_their_documented_bounds(algorithm_id, limit, window, hits, start):
    bound = 2 * limit - 1 if algorithm_id == 1 else 2 * limit
    assert largest_window(admit_hits(algorithm_id, limit, window, hits, start), window) <= bound


def test_the_documented_bounds_are_reached():
    """Hits at the worst times reach the documented bounds, so no smaller bound is true."""
    late = [(0.999, 1, 0)] + [(0, 1, 0)] * 9
    assert largest_window(admit_hits(0, 10, 1000, [*late, (0.001, 1, 0), *[(0, 1, 0)] * 9]), 1000) == 20
    assert largest_window(admit_hits(2, 10, 1000, [(0, 1, 0)] * 10 + [(0.1, 1, 0)] * 10), 1000) == 19
    assert largest_window(admit_hits(1, 10, 1000, [*late, (0.101, 1, 0), *[(0.1, 1, 0)] * 8]), 1000) == 19


_action = st.tuples(
    st.sampled_from((0, 0, 0, 1, 1000, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0, 1.5)),
    st.sampled_from(("hit", "wait", "wait", "cancel", "cancel first", "refund")),
    st.sampled_from((1, 1, 2, 5, 10)),
)


@settings(OFTEN, max_examples=1000)
@given(
    algorithm_id=st.integers(0, 3), limit=_limits, window=_windows, actions=st.lists(_action, min_size=8, max_size=60)
)
def test_refunds_never_admit_more_than_the_bound(algorithm_id, limit, window, actions):
    """This covers waiters cancelled anywhere in the queue and hits refunded at once, also while others wait."""
    (rule,) = Script(algorithm_id, ((limit, window, limit),), ()).rules()
    span = window * 1000
    now, state, granted = BASE, None, []
    for after, action, wanted in actions:
        now += int(after * span) if isinstance(after, float) else after
        cost = min(wanted, limit)
        command = Hit(now + DAY, algorithm_id, (rule,), cost, 10 * span if action == "wait" else 0)
        if action.startswith("cancel"):
            waiting = [one for one in granted if one[0] > now]
            if not waiting:
                continue
            given = min(waiting) if action == "cancel first" else waiting[wanted % len(waiting)]
            command = Refund(now + DAY, algorithm_id, (rule,), given[1], given[0])
            granted.remove(given)
        elif action == "refund":
            fresh = [one for one in granted if one[0] == now]
            if not fresh:
                continue
            command = Refund(now + DAY, algorithm_id, (rule,), fresh[0][1])
            granted.remove(fresh[0])
        done = step(state, command, now)
        state = done.state if done.write else state
        if isinstance(done.reply, Admitted):
            granted.append((done.reply.at, cost))
    assert largest_window(granted, window) <= {0: 2 * limit, 1: 2 * limit - 1, 2: 2 * limit, 3: limit}[algorithm_id]
    if algorithm_id == 0:
        windows = {at // span for at, _ in granted}
        assert all(sum(cost for at, cost in granted if at // span == one) <= limit for one in windows)


@OFTEN
@given(script=scripts)
def test_retry_after_is_exact(script):
    """The same hit is admitted at that time and denied a millisecond earlier."""
    for moment in run_script(script):
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
def test_a_denied_hit_and_a_peek_change_no_state(script):
    before = None
    for moment in run_script(script):
        if isinstance(moment.reply, (Denied, Expired)) or isinstance(moment.command, Peek):
            assert moment.state == before
        before = moment.state


@OFTEN
@given(script=scripts)
def test_a_peek_returns_the_decision_of_a_hit(script):
    for moment in run_script(script):
        if isinstance(moment.command, Peek) and not isinstance(moment.reply, Expired):
            peek = moment.command
            hit = step(moment.state, Hit(peek.not_after, peek.algorithm_id, peek.rules, peek.cost), moment.now).reply
            assert type(hit) is type(moment.reply)
            if isinstance(hit, Denied):
                assert hit == moment.reply


@OFTEN
@given(script=scripts)
def test_exactly_the_remaining_cost_is_admitted(script):
    for moment in run_script(script):
        if not isinstance(moment.command, Peek) or not isinstance(moment.reply, Admitted) or len(script.rates) > 1:
            continue
        peek, left = moment.command, moment.reply.remaining
        for cost, kind in ((left, Admitted), (left + 1, Denied)):
            if cost <= peek.rules[0].burst:
                hit = Hit(peek.not_after, peek.algorithm_id, peek.rules, cost)
                assert isinstance(step(moment.state, hit, moment.now).reply, kind)


@OFTEN
@given(script=scripts)
def test_a_record_past_keep_until_changes_no_reply(script):
    forward = tuple(replace(d, after=abs(d.after), other=0) if isinstance(d, Draft) else d for d in script.drafts)
    model = Model(LIMIT, monotone=True)
    history = run_script(replace(script, drafts=forward), model)

    class NeverSweepingModel(Model):
        def sweep(self, now):
            self._latest = max(self._latest, now)

    unswept = NeverSweepingModel(LIMIT, monotone=True)
    for moment in history:
        if moment.command is None:
            unswept.sweep(moment.now)
        else:
            assert unswept.apply(moment.command, moment.now).reply == moment.reply


@OFTEN
@given(script=scripts)
def test_admissions_are_ordered_in_time(script):
    """Admission times never decrease unless a refund or a reset happens."""
    latest = 0
    for moment in run_script(script):
        if isinstance(moment.command, (machine.Refund, machine.Reset)) or moment.state is None:
            latest = 0
        if isinstance(moment.command, Hit) and isinstance(moment.reply, Admitted):
            assert moment.reply.at // 1000 >= latest // 1000
            latest = moment.reply.at


@OFTEN
@given(algorithm_id=st.integers(0, 3), limit=_limits, window=_windows, hits=_hit_lists)
def test_a_hit_refunded_at_once_leaves_the_counts_unchanged(algorithm_id, limit, window, hits):
    (rule,) = Script(algorithm_id, ((limit, window, limit),), ()).rules()
    now, state = BASE, None
    for after, wanted, _ in hits:
        now += int(after * window * 1000) if isinstance(after, float) else after
        cost = min(wanted, limit)
        peek = Peek(now + DAY, algorithm_id, (rule,), 1)
        done = step(state, Hit(now + DAY, algorithm_id, (rule,), cost), now)
        if not done.write:
            continue
        before = step(state, peek, now).reply
        back = step(done.state, Refund(now + DAY, algorithm_id, (rule,), cost), now)
        assert isinstance(back.reply, Done)
        after_all = step(back.state, peek, now).reply
        assert (after_all.count, after_all.remaining) == (before.count, before.remaining)
        state = done.state
