"""Random histories of one idempotency key: a few callers, at times that stand still, jump and go back."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from backstay.engine.base import Command, Micros
from backstay.idempotency import machine
from backstay.idempotency.machine import DAY, IDEMPOTENCY, LIFE, RECHECK, SLACK
from support.agreement.machine_model import BASE, INBOXES, Model, Moment

_NEAR = (0, 0, 0, 0, 1, 1, SLACK, 50_000, 300_000, 1_000_000)
_EDGES = (2_000_000, 4_999_999, 5_000_000, 5_000_001, RECHECK, LIFE, LIFE + 1)
_JUMPS = (DAY, DAY + 1, DAY + 5_000_000, 3 * DAY, -1, -LIFE, -DAY // 2)
_FIELDS: dict[str, tuple[Any, ...]] = {
    "kind": (machine.Begin,) * 10 + (machine.Complete,) * 5 + (machine.Renew, machine.Abandon) * 3 + (machine.Forget,),
    "after": _NEAR * 8 + _EDGES * 2 + _JUMPS,
    "patience": (RECHECK,) * 24 + (1, 0, -1),
    "ticket": ("t1", "t1", "t1", "t2", "t2", "t3", "t4", "t5"),
    "lease": (5_000_000, LIFE) * 3 + (1, 1_000, DAY),
    "ttl": (5_000_000, DAY, DAY) * 3 + (1, 3 * DAY),
    "inbox": (True,) * 4 + (False,),
    "fingerprint": ("",) * 12 + ("a", "a", "b"),
    "failed": (False, False, True),
    "body": (b"", b"r\xff\x00", b"x" * 70_000, "Ω".encode()),
    "gone": (0, 0, 0, 1, RECHECK, LIFE, -1),
    "fence": (0,) * 6 + (1, BASE, BASE + 7 * DAY),
}


def _command(fields: dict[str, Any], now: Micros) -> Command:
    not_after, ticket = now + fields["patience"], fields["ticket"]
    match fields["kind"]:
        case machine.Begin:
            inbox = INBOXES[ticket > "t2"] if fields["inbox"] else ""
            return machine.Begin(not_after, ticket, f"by-{ticket}", fields["fingerprint"], fields["lease"], inbox)
        case machine.Renew:
            return machine.Renew(not_after, ticket, fields["fence"], fields["lease"])
        case machine.Complete:
            return machine.Complete(not_after, ticket, fields["fence"], fields["ttl"], fields["failed"], fields["body"])
        case machine.Abandon:
            return machine.Abandon(not_after, ticket, now + fields["gone"] if fields["gone"] else 0)
        case _:
            return machine.Forget(not_after)


#: One byte chooses each field. All bytes are one draw, because draws make examples slow.
scripts = st.lists(st.binary(min_size=len(_FIELDS), max_size=len(_FIELDS)), min_size=8, max_size=28)


def run_script(script: list[bytes]) -> list[Moment]:
    """Run a script on the machine and remove the row around the time the machine allows it; return the history."""
    model = Model(IDEMPOTENCY)
    now = BASE
    history = []
    for dice in script:
        if dice[0] > 244:
            if model.state is not None:
                now = max(now, model.keep_until + (-1, 0, 1, DAY)[dice[0] % 4])
                history.append(model.sweep(now))
            continue
        fields = {name: options[die % len(options)] for die, (name, options) in zip(dice, _FIELDS.items(), strict=True)}
        now += fields["after"]
        history.append(model.apply(_command(fields, now), now))
    return history
