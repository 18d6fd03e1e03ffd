"""Flows: one coroutine for both worlds, resends and retries in one place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay.engine.base import Apply, Expired
from backstay.errors import EngineRefused, EngineUnavailable, OutcomeUnknown
from backstay.gate.machine import GATE, Renew, Renewed
from backstay.runtime.flows import PATIENCE_MICROS, ask, run
from backstay.telemetry import Telemetry


class Script:
    """A port and an engine in one, playing given answers."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[Any] = []
        self.pauses: list[float] = []
        self.corrected: list[int] = []

    def now(self) -> int:
        return 1_000

    def correct(self, now: int) -> None:
        self.corrected.append(now)

    async def apply(self, op):
        self.sent.append(op.command)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def play(script: Script, retries: int = 3):
    return run(ask(script, script, Apply(GATE, "x", Renew(1_000 + PATIENCE_MICROS, "t", 1, 5)), retries, Telemetry()))


def test_a_lost_reply_is_asked_for_again_at_once_with_the_same_command():
    script = Script(OutcomeUnknown("lost"), Renewed(7))
    asked = play(script)
    assert asked.reply == Renewed(7)
    assert asked.doubt_until == 1_000 + PATIENCE_MICROS
    assert script.sent[0] == script.sent[1]
    assert script.pauses == []


def test_replies_that_are_lost_again_and_again_are_asked_for_with_growing_pauses():
    script = Script(*[OutcomeUnknown("lost")] * 4, Renewed(7))
    assert play(script).reply == Renewed(7)
    assert script.pauses == sorted(script.pauses)
    assert len(script.pauses) == 3


def test_an_absent_engine_is_tried_again_with_growing_pauses_and_then_given_up():
    script = Script(*[EngineUnavailable("away")] * 4)
    with pytest.raises(EngineUnavailable, match="away"):
        play(script)
    assert len(script.sent) == 4
    first, second, third = script.pauses
    assert 0.1 <= first <= 0.2
    assert 0.3 <= second <= 0.6
    assert 0.9 <= third <= 1.8


def test_an_answer_after_an_absence_leaves_no_doubt():
    asked = play(Script(EngineUnavailable("away"), Renewed(7)))
    assert asked.doubt_until == 0


def test_giving_up_after_a_lost_reply_says_that_the_outcome_is_unknown():
    script = Script(OutcomeUnknown("lost"), *[EngineUnavailable("away")] * 2)
    with pytest.raises(OutcomeUnknown, match="earlier attempt"):
        play(script, retries=1)


def test_a_refusal_is_final():
    script = Script(EngineRefused("no rights"))
    with pytest.raises(EngineRefused):
        play(script)
    assert len(script.sent) == 1


def test_a_command_that_came_too_late_is_sent_again_by_the_engines_clock():
    script = Script(Expired(99_000_000), Renewed(7))
    assert play(script).reply == Renewed(7)
    assert script.corrected == [99_000_000]
    assert script.sent[1].not_after == 99_000_000 + PATIENCE_MICROS


def test_a_clock_that_cannot_be_corrected_ends_in_an_error():
    with pytest.raises(EngineUnavailable, match="too late"):
        play(Script(*[Expired(5)] * 5))


def test_a_flow_that_suspends_on_a_blocking_port_is_a_bug_and_says_so():
    async def suspends():
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        run(suspends())
