"""A program whose servers, schedulers and workers a race kills. The inputs of a run define how each of its jobs ends.
Each attempt returns a unique token, and the tokens of the results that it received, so that a checker can verify whose
results were used.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

from backstay import Backstay, Flow

stay = Backstay(
    os.environ.get("CHAOS_URL", "memory://"), namespace="run-chaos", shards=int(os.environ.get("CHAOS_SHARDS", "1"))
)
FOLDER = Path(os.environ.get("CHAOS_FOLDER", "."))
#: The duration of an attempt in seconds.
DURATION = float(os.environ.get("CHAOS_DURATION", "0.03"))
#: Retries of a job that must succeed despite the faults of the race, of a job that always fails, and of a job whose
#: outcome is known only when it runs.
MANY, FEW, SOME = 60, 1, 8
LENGTH, WIDTH = 20, 100
COLOURS = ("", "red", "blue")


class PlannedFailure(Exception):
    """The planned failure of an attempt."""


async def attempt(run: str, key: str, outcome: str, received: list[Any]) -> dict[str, Any]:
    """Run one attempt. Outcomes: `ok`; `fail` on every attempt; `soft`, a failure that does not block dependents;
    `flaky:2`, a failure of the first two attempts.
    """
    token = uuid.uuid4().hex
    file = FOLDER / run / key
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as lines:
        lines.write(f"{token}\n")
    attempts = file.read_text().count("\n")
    await asyncio.sleep(DURATION)
    kind, _, times = outcome.partition(":")
    if kind in ("fail", "soft") or (kind == "flaky" and attempts <= int(times)):
        raise PlannedFailure(key)
    return {"key": key, "token": token, "received": {one["key"]: one["token"] for one in received if one}}


@stay.job(retries=MANY, backoff=0.05)
async def work(run: str, key: str, outcome: str, received: list[Any]) -> dict[str, Any]:
    return await attempt(run, key, outcome, received)


@stay.job(retries=MANY, backoff=0.05)
async def split(run: str, outcomes: dict[str, str]) -> list[dict[str, str]]:
    await attempt(run, "split", outcomes.get("split", "ok"), [])
    return [{"key": f"part-{n}", "outcome": outcomes.get(f"part ({n})", "ok")} for n in range(WIDTH)]


@stay.job(retries=SOME, backoff=0.05)
async def part(item: dict[str, str], run: str) -> dict[str, Any]:
    return await attempt(run, item["key"], item["outcome"], [])


class JobAdder:
    """Adds jobs to a flow with the options that their planned outcomes need."""

    def __init__(self, flow: Flow, run: str, outcomes: dict[str, str]) -> None:
        self._flow = flow
        self._run = run
        self._outcomes = outcomes

    def add(self, key: str, *inputs: Any, colour: str = "", **options: Any) -> Any:
        outcome = self._outcomes.get(key, "ok")
        call = work.options(retries=FEW if outcome in ("fail", "soft") else MANY, labels=[colour] if colour else [])
        return self._flow.add(call, self._run, key, outcome, list(inputs), key=key, soft=outcome == "soft", **options)


@stay.workflow
def diamond(flow: Flow, run: str, outcomes: dict[str, str], extra: str = "no") -> None:
    adder = JobAdder(flow, run, outcomes)
    top = adder.add("top")
    left = adder.add("left", top.output, colour="red")
    right = adder.add("right", top.output, colour="blue")
    join = adder.add("join", left.output, right.output)
    adder.add("on-failure", after=join, when="any_failure")
    adder.add("report", after=[left, right], when="all_done")
    adder.add("extra", after=join, when="inputs.extra == 'yes'")


@stay.workflow
def chain(flow: Flow, run: str, outcomes: dict[str, str]) -> None:
    adder = JobAdder(flow, run, outcomes)
    last = adder.add("link-0")
    for n in range(1, LENGTH):
        last = adder.add(f"link-{n}", last.output, colour=COLOURS[n % 3])
    adder.add("on-failure", after=last, when="any_failure")


@stay.workflow
def fan(flow: Flow, run: str, outcomes: dict[str, str]) -> None:
    adder = JobAdder(flow, run, outcomes)
    top = adder.add("top")
    parts = [adder.add(f"part-{n}", top.output, colour=COLOURS[n % 3]) for n in range(WIDTH)]
    join = adder.add("join", *[one.output for one in parts])
    adder.add("on-failure", after=join, when="any_failure")


@stay.workflow
def spread(flow: Flow, run: str, outcomes: dict[str, str]) -> None:
    """A fan whose width is known only when its first job has completed."""
    adder = JobAdder(flow, run, outcomes)
    items = flow.add(split, run, outcomes)
    parts = flow.map(part, items.output, run=run, key="part")
    adder.add("join", after=parts)
    adder.add("on-failure", after=parts, when="any_failure")
