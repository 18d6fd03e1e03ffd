"""An app whose workers are killed by a test; its mail jobs append each start to a file."""

import os
import time
from pathlib import Path

from backstay import Flow
from backstay.sync import Backstay

stay = Backstay(os.environ.get("FLOW_URL", "memory://"), namespace="flow-chaos")
NOTES = Path(os.environ.get("FLOW_NOTES", os.devnull))


def note(word: str) -> None:
    with NOTES.open("a") as file:
        file.write(f"{word}\n")


@stay.job(retries=50, backoff=0.05)
def find(run: int) -> list[int]:
    time.sleep(0.02)
    return [run, run + 1, run + 2]


@stay.job(retries=50, backoff=0.05)
def square(n: int) -> int:
    time.sleep(0.03)
    return n * n


@stay.job(retries=50, backoff=0.05)
def total(numbers: list[int]) -> int:
    return sum(numbers)


@stay.job(retries=0)
def fail() -> None:
    raise ValueError("on purpose")


@stay.job(retries=50, backoff=0.05)
def mail(run: int) -> str:
    note(f"mail {run}")
    return "sent"


@stay.workflow
def crunch(flow: Flow, run: int) -> None:
    found = flow.add(find, run)
    squares = flow.map(square, found.output)
    left = flow.add(total, squares.output, key="left", when="needs.square.result == 'success'")
    right = flow.add(total, found.output, key="right")
    both = flow.add(total, [left.output, right.output], key="both")
    broken = flow.add(fail, after=both)
    flow.add(mail, run, after=broken, when="any_failure")
    flow.add(mail, run, key="never", after=broken, when="success() && inputs.run != 0")
