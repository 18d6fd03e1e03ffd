"""Behaviour that all guards share, whatever the store."""

from __future__ import annotations

import asyncio

import pytest

import backstay
from backstay import ConfigError, LeaseLost, StaleFence


class Cell:
    """A store with compare-and-set: a value and its fence, under a version."""

    def __init__(self):
        self.value, self.fence, self.version = "", None, 0
        self.before_swap = lambda: None

    def read(self):
        return self.fence, self.version

    def swap_to(self, value):
        def swap(version, fence):
            self.before_swap()
            if version != self.version:
                return False
            self.value, self.fence, self.version = value, fence, version + 1
            return True

        return swap


def test_a_shared_lease_cannot_be_guarded(stay):
    """Several permits or readers are live at once, so an older fence does not mean a superseded holder."""
    for shared in (stay.semaphore("s", permits=1), stay.rwlock("r").read()):
        with shared as lease, pytest.raises(ConfigError, match=r"stay\.lock"):
            stay.guard(lease)
    with stay.rwlock("r").write() as lease:
        assert stay.guard(lease).fence == lease.fence


def test_only_a_lease_can_be_guarded(stay):
    with pytest.raises(ConfigError, match="lease"):
        stay.guard("invoice:42")


def test_compare_and_set_refuses_an_older_fence(stay, leases):
    older, newer = leases
    cell = Cell()
    stay.guard(older).cas(cell.read, cell.swap_to("first"))
    stay.guard(newer).cas(cell.read, cell.swap_to("second"))
    with pytest.raises(StaleFence) as refused:
        stay.guard(older).cas(cell.read, cell.swap_to("late"))
    assert (refused.value.name, refused.value.fence, refused.value.newer) == ("invoice:42", older.fence, newer.fence)
    assert cell.value == "second"


def test_compare_and_set_rereads_after_a_lost_race_and_sees_the_newer_fence(stay, leases):
    older, newer = leases
    cell = Cell()

    def overtake():
        cell.before_swap = lambda: None
        stay.guard(newer).cas(cell.read, cell.swap_to("second"))

    cell.before_swap = overtake
    with pytest.raises(StaleFence):
        stay.guard(older).cas(cell.read, cell.swap_to("late"))
    assert cell.value == "second"


def test_compare_and_set_retries_after_a_write_without_a_newer_fence(stay, leases):
    """A writer without a lease changed another part of the value: the version changed, the fence did not."""
    _, newer = leases
    cell = Cell()

    def touch():
        cell.before_swap = lambda: None
        cell.version += 1

    cell.before_swap = touch
    stay.guard(newer).cas(cell.read, cell.swap_to("second"))
    assert cell.value == "second"


def test_compare_and_set_stops_retrying_when_the_lease_ends(stay):
    lease = stay.lock("x").acquire()
    cell = Cell()

    def overtaken(version, fence):
        lease.release()
        return False

    with pytest.raises(LeaseLost):
        stay.guard(lease).cas(cell.read, overtaken)


def test_compare_and_set_accepts_async_functions():
    async def main():
        cell = Cell()

        async def read():
            await asyncio.sleep(0)
            return cell.read()

        async def swap(version, fence):
            await asyncio.sleep(0)
            return cell.swap_to("written")(version, fence)

        async with backstay.Backstay("memory://") as stay, stay.lock("x") as lease:
            await stay.guard(lease).cas(read, swap)
            assert (cell.value, cell.fence) == ("written", lease.fence)

    asyncio.run(main())


def test_a_released_lease_writes_nothing(stay):
    cell = Cell()
    with stay.lock("x") as lease:
        pass
    with pytest.raises(LeaseLost):
        stay.guard(lease).cas(cell.read, cell.swap_to("late"))
    assert not cell.value
