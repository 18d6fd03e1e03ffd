"""A signal handler that raises in a running worker (Ctrl-C, SIGALRM) ends it at any instruction: no lease is renewed
after that, and another worker completes its jobs.
"""

from __future__ import annotations

import pytest

from backstay.testing.waiting import eventually
from support.interrupts import Interrupts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

#: An interrupted worker's jobs are free for others after this many seconds at the latest.
LEASE = 1.0
JOBS = 3


def run_worker(stay):
    stay.worker(concurrency=2, lease=LEASE, drain=5, signals=False).run(burst=True)


def count_instructions(stay, add) -> int:
    """Return how many instructions of Backstay's code a worker runs for a few jobs, on the calling thread."""
    for number in range(JOBS):
        add.enqueue(number)
    interrupts = Interrupts("signal", 10**9)
    assert not interrupts.run(lambda: run_worker(stay))
    return interrupts.passed


@pytest.mark.parametrize("part", range(4))
def test_an_interrupt_at_any_instruction_leaves_no_lease_renewed(connect, part):
    stay = connect("memory://")
    done = []

    @stay.job(retries=5)
    def add(number: int) -> None:
        done.append(number)

    total = count_instructions(stay, add)
    stride = max(1, total // 48)
    interrupted = 0
    for n in range(part * stride + part, total, 4 * stride):
        handles = [add.enqueue(number) for number in range(JOBS)]
        interrupted += Interrupts("signal", n).run(lambda: run_worker(stay))
        keeper = stay.internals.core.keeper
        assert eventually(lambda: not keeper._renewers, 10), f"at instruction {n}"  # noqa: B023 - called at once

        def finish():
            run_worker(stay)
            return all(handle.status() == "completed" for handle in handles)  # noqa: B023 - called at once

        assert eventually(finish), f"at instruction {n}: {[handle.status() for handle in handles]}"
    assert interrupted > 0
