"""Operations: one coroutine serves both APIs; lost replies are resolved and outages retried in one place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay.engine.base import Apply, Expired
from backstay.errors import EngineRefused, EngineUnavailable, OutcomeUnknown
from backstay.gate.commands import Renew, Renewed
from backstay.gate.machine import GATE
from backstay.runtime.flows import run
from backstay.runtime.lost_replies import COMMAND_LIFE_MICROS, send_idempotent
from backstay.telemetry import Telemetry


class Script:
    """A port and an engine in one, which returns the given replies."""

    def __init__(self, *replies: Any) -> None:
        self.answers = list(replies)
        self.sent: list[Any] = []
        self.pauses: list[float] = []
        self.corrected: list[int] = []

    def now(self) -> int:
        return 1_000

    def correct_clock(self, now: int) -> None:
        self.corrected.append(now)

    async def apply(self, op):
        self.sent.append(op.command)
        reply = self.answers.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def send(script: Script, retries: int = 3):
    return run(
        send_idempotent(
            script, script, Apply(GATE, "x", Renew(1_000 + COMMAND_LIFE_MICROS, "t", 1, 5)), retries, Telemetry()
        )
    )


def test_after_a_lost_reply_the_same_command_is_resent_at_once():
    script = Script(OutcomeUnknown("lost"), Renewed(7))
    asked = send(script)
    assert asked.reply == Renewed(7)
    assert asked.doubt_until == 1_000 + COMMAND_LIFE_MICROS
    assert script.sent[0] == script.sent[1]
    assert script.pauses == []


def test_repeatedly_lost_replies_are_retried_with_backoff():
    script = Script(*[OutcomeUnknown("lost")] * 4, Renewed(7))
    assert send(script).reply == Renewed(7)
    assert script.pauses == sorted(script.pauses)
    assert len(script.pauses) == 3


def test_an_unavailable_engine_is_retried_with_backoff_and_then_raises():
    script = Script(*[EngineUnavailable("away")] * 4)
    with pytest.raises(EngineUnavailable, match="away"):
        send(script)
    assert len(script.sent) == 4
    first, second, third = script.pauses
    assert 0.1 <= first <= 0.2
    assert 0.3 <= second <= 0.6
    assert 0.9 <= third <= 1.8


def test_a_reply_after_an_unavailable_engine_leaves_no_doubt():
    asked = send(Script(EngineUnavailable("away"), Renewed(7)))
    assert asked.doubt_until == 0


def test_giving_up_after_a_lost_reply_raises_outcome_unknown():
    script = Script(OutcomeUnknown("lost"), *[EngineUnavailable("away")] * 2)
    with pytest.raises(OutcomeUnknown, match="earlier attempt"):
        send(script, retries=1)


def test_a_refused_command_is_not_retried():
    script = Script(EngineRefused("no rights"))
    with pytest.raises(EngineRefused):
        send(script)
    assert len(script.sent) == 1


def test_an_expired_command_is_resent_by_the_engines_clock():
    script = Script(Expired(99_000_000), Renewed(7))
    assert send(script).reply == Renewed(7)
    assert script.corrected == [99_000_000]
    assert script.sent[1].not_after == 99_000_000 + COMMAND_LIFE_MICROS


def test_a_clock_that_cannot_be_corrected_raises():
    with pytest.raises(EngineUnavailable, match="after its expiry"):
        send(Script(*[Expired(5)] * 5))


def test_an_operation_that_suspends_on_a_blocking_port_raises():
    async def suspends():
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        run(suspends())
