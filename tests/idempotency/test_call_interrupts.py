"""A signal handler that raises (Ctrl-C, SIGALRM) at any instruction of an idempotent call leaves its key idle or done,
never running without a caller.
"""

from __future__ import annotations

import pytest

from backstay.testing.waiting import eventually
from support.interrupts import HOW, walk

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Calls:
    """Makes one call after another, each with a new key."""

    def __init__(self, stay):
        self._stay = stay
        self._core = stay.internals.core
        self._runs = 0
        self.key = ""

        @stay.idempotent("decorated:{number}")
        def charge(number: int) -> int:
            return number

        self._charge = charge

    def new_key(self, prefix):
        self._runs += 1
        self.key = f"{prefix}:{self._runs}"

    def run(self):
        self.new_key("plain")
        assert self._stay.idempotency.run(self.key, lambda: 7) == 7

    def run_decorated(self):
        self.new_key("decorated")
        assert self._charge(self._runs) == self._runs

    def run_failing(self):
        self.new_key("failing")
        with pytest.raises(ZeroDivisionError):
            self._stay.idempotency.run(self.key, lambda: 1 // 0)

    def run_replayed(self):
        self.new_key("replayed")
        self._stay.idempotency.run(self.key, lambda: 7)
        assert self._stay.idempotency.run(self.key, lambda: 8) == 7

    def left_over(self):
        core = self._core
        state = self._stay.idempotency.inspect(self.key).state if self.key else "idle"
        parts = (state == "running" and state, core.held_leases, core.keeper._leases, core.latches, core.callers)
        return [part for part in parts if part]

    def check(self, n, interrupted):
        assert eventually(lambda: not self.left_over(), 10), f"at instruction {n}: {self.left_over()}"


@HOW
@pytest.mark.parametrize("name", ["run", "run_decorated", "run_failing", "run_replayed"])
def test_an_interrupt_at_any_instruction_leaves_no_key_running(connect, name, how):
    calls = Calls(connect("memory://"))
    action = getattr(calls, name)
    action()
    assert walk(how, action, calls.check, stride=1 if name == "run" else 5) > 0
    action()


@HOW
def test_an_interrupt_leaves_no_key_running_on_any_engine(connect, shared_url, how):
    calls = Calls(connect(shared_url))
    calls.run()
    assert walk(how, calls.run, calls.check, stride=19) > 0
    calls.run()


def test_the_outcome_of_a_call_that_is_interrupted_while_it_is_stored_is_kept(connect):
    """The function has run: a later call gets its result and does not run again, or the call counts as not made."""
    stay = connect("memory://")
    calls, ran = Calls(stay), []

    def action():
        calls.new_key("stored")
        stay.idempotency.run(calls.key, lambda: ran.append(calls.key) or 7)

    def check(n, interrupted):
        calls.check(n, interrupted)
        state = stay.idempotency.inspect(calls.key).state
        assert stay.idempotency.run(calls.key, lambda: ran.append(calls.key) or 7) == 7
        assert ran.count(calls.key) <= (1 if state == "completed" else 2), (n, state)

    action()
    walk("raise", action, check, stride=7)
