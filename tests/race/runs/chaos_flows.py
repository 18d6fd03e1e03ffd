"""A program whose servers, schedulers and workers are killed. How each job ends is said by the run's inputs; each
attempt leaves a word of its own in a file, and hands it on, so that it can be told later whose result was used.
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
#: How long an attempt takes, in seconds.
CHORE = float(os.environ.get("CHAOS_CHORE", "0.03"))
#: Attempts that troubles may cost; those of a job that fails each time; and of one that may be either.
MANY, FEW, SOME = 60, 1, 8
LENGTH, WIDTH = 20, 100
COLOURS = ("", "red", "blue")


class OnPurpose(Exception):
    """The planned failure of an attempt."""


async def attempt(run: str, key: str, outcome: str, seen: list[Any]) -> dict[str, Any]:
    """Outcomes: ok; fail: each time; soft: fails without blocking dependents; flaky:2: fails the first two times."""
    word = uuid.uuid4().hex
    file = FOLDER / run / key
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as lines:
        lines.write(f"{word}\n")
    began = file.read_text().count("\n")
    await asyncio.sleep(CHORE)
    kind, _, times = outcome.partition(":")
    if kind in ("fail", "soft") or (kind == "flaky" and began <= int(times)):
        raise OnPurpose(key)
    return {"key": key, "word": word, "seen": {one["key"]: one["word"] for one in seen if one}}


@stay.job(retries=MANY, backoff=0.05)
async def work(run: str, key: str, outcome: str, seen: list[Any]) -> dict[str, Any]:
    return await attempt(run, key, outcome, seen)


@stay.job(retries=MANY, backoff=0.05)
async def deal(run: str, outcomes: dict[str, str]) -> list[dict[str, str]]:
    await attempt(run, "deal", outcomes.get("deal", "ok"), [])
    return [{"key": f"part-{n}", "outcome": outcomes.get(f"part ({n})", "ok")} for n in range(WIDTH)]


@stay.job(retries=SOME, backoff=0.05)
async def part(item: dict[str, str], run: str) -> dict[str, Any]:
    return await attempt(run, item["key"], item["outcome"], [])


class Script:
    """Adds jobs to a flow with the options that their planned outcomes need."""

    def __init__(self, flow: Flow, run: str, outcomes: dict[str, str]) -> None:
        self._flow = flow
        self._run = run
        self._outcomes = outcomes

    def add(self, key: str, *seen: Any, colour: str = "", **options: Any) -> Any:
        outcome = self._outcomes.get(key, "ok")
        call = work.options(retries=FEW if outcome in ("fail", "soft") else MANY, labels=[colour] if colour else [])
        return self._flow.add(call, self._run, key, outcome, list(seen), key=key, soft=outcome == "soft", **options)


@stay.workflow
def diamond(flow: Flow, run: str, outcomes: dict[str, str], more: str = "no") -> None:
    script = Script(flow, run, outcomes)
    top = script.add("top")
    left = script.add("left", top.output, colour="red")
    right = script.add("right", top.output, colour="blue")
    join = script.add("join", left.output, right.output)
    script.add("mend", after=join, when="any_failure")
    script.add("tell", after=[left, right], when="all_done")
    script.add("more", after=join, when="inputs.more == 'yes'")


@stay.workflow
def chain(flow: Flow, run: str, outcomes: dict[str, str]) -> None:
    script = Script(flow, run, outcomes)
    last = script.add("link-0")
    for n in range(1, LENGTH):
        last = script.add(f"link-{n}", last.output, colour=COLOURS[n % 3])
    script.add("mend", after=last, when="any_failure")


@stay.workflow
def fan(flow: Flow, run: str, outcomes: dict[str, str]) -> None:
    script = Script(flow, run, outcomes)
    top = script.add("top")
    parts = [script.add(f"part-{n}", top.output, colour=COLOURS[n % 3]) for n in range(WIDTH)]
    join = script.add("join", *[one.output for one in parts])
    script.add("mend", after=join, when="any_failure")


@stay.workflow
def spread(flow: Flow, run: str, outcomes: dict[str, str]) -> None:
    """A fan whose width is known only when its first job has ended."""
    script = Script(flow, run, outcomes)
    dealt = flow.add(deal, run, outcomes)
    parts = flow.map(part, dealt.output, run=run, key="part")
    script.add("join", after=parts)
    script.add("mend", after=parts, when="any_failure")
