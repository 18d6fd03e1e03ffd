"""What every guard does, whatever it writes to."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast import ConfigError, LeaseLost, StaleFence


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


def test_a_shared_lease_cannot_be_guarded(hf):
    """A live permit or reader may bear an older fence than another live one."""
    for shared in (hf.semaphore("s", permits=1), hf.rwlock("r").read()):
        with shared as lease, pytest.raises(ConfigError, match=r"hf\.lock"):
            hf.guard(lease)
    with hf.rwlock("r").write() as lease:
        assert hf.guard(lease).fence == lease.fence


def test_only_a_lease_can_be_guarded(hf):
    with pytest.raises(ConfigError, match="lease"):
        hf.guard("invoice:42")


def test_compare_and_set_refuses_an_older_fence(hf, leases):
    older, newer = leases
    cell = Cell()
    hf.guard(older).cas(cell.read, cell.swap_to("first"))
    hf.guard(newer).cas(cell.read, cell.swap_to("second"))
    with pytest.raises(StaleFence) as refused:
        hf.guard(older).cas(cell.read, cell.swap_to("late"))
    assert (refused.value.name, refused.value.fence, refused.value.newer) == ("invoice:42", older.fence, newer.fence)
    assert cell.value == "second"


def test_compare_and_set_looks_again_when_it_was_overtaken(hf, leases):
    older, newer = leases
    cell = Cell()

    def overtake():
        cell.before_swap = lambda: None
        hf.guard(newer).cas(cell.read, cell.swap_to("second"))

    cell.before_swap = overtake
    with pytest.raises(StaleFence):
        hf.guard(older).cas(cell.read, cell.swap_to("late"))
    assert cell.value == "second"


def test_compare_and_set_tries_again_after_a_write_that_is_not_newer(hf, leases):
    """Somebody without a lease changed another part of the value: the version moved, the fence did not."""
    _, newer = leases
    cell = Cell()

    def touch():
        cell.before_swap = lambda: None
        cell.version += 1

    cell.before_swap = touch
    hf.guard(newer).cas(cell.read, cell.swap_to("second"))
    assert cell.value == "second"


def test_compare_and_set_ends_when_the_lease_does(hf):
    lease = hf.lock("x").acquire()
    cell = Cell()

    def overtaken(version, fence):
        lease.release()
        return False

    with pytest.raises(LeaseLost):
        hf.guard(lease).cas(cell.read, overtaken)


def test_compare_and_set_can_be_awaited():
    async def scene():
        cell = Cell()

        async def read():
            await asyncio.sleep(0)
            return cell.read()

        async def swap(version, fence):
            await asyncio.sleep(0)
            return cell.swap_to("written")(version, fence)

        async with holdfast.Holdfast("memory://") as hf, hf.lock("x") as lease:
            await hf.guard(lease).cas(read, swap)
            assert (cell.value, cell.fence) == ("written", lease.fence)

    asyncio.run(scene())


def test_a_released_lease_writes_nothing(hf):
    cell = Cell()
    with hf.lock("x") as lease:
        pass
    with pytest.raises(LeaseLost):
        hf.guard(lease).cas(cell.read, cell.swap_to("late"))
    assert not cell.value
