"""A signal handler that raises (Ctrl-C, SIGALRM) at any instruction of enter or exit leaves no lock held or waited for:
either the lease reaches the caller, or it is given back.
"""

from __future__ import annotations

import gc
import threading
from contextlib import suppress

import pytest

from backstay.errors import LockTimeout
from backstay.testing.waiting import WITHIN, eventually
from support.interrupts import HOW, Interrupts, walk

NAME = "invoice:42"

pytestmark = [
    # An interrupt between the creation of an operation and its first step: nothing was done.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    # An interrupt between the creation of a socket and its first use: the garbage collector closes it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def enter_and_leave(stay):
    lock = stay.lock(NAME)

    def action():
        with lock:
            pass

    return action


def enter_a_new_lock(stay):
    def action():
        with stay.lock(NAME) as lease:
            lease.check()

    return action


def enter_a_semaphore(stay):
    def action():
        with stay.semaphore(NAME, permits=1):
            pass

    return action


def read_and_write(stay):
    both = stay.rwlock(NAME)

    def action():
        with both.read():
            pass
        with both.write():
            pass

    return action


def enter_twice(stay):
    lock = stay.lock(NAME, reentrant=True)

    def action():
        with lock, lock:
            pass

    return action


def acquire_and_release(stay):
    lock = stay.lock(NAME)

    def action():
        lease = lock.acquire()
        try:
            lease.release()
        finally:  # the program still has the lease if its release was interrupted
            lease.release()

    return action


def try_and_release(stay):
    lock = stay.lock(NAME)

    def action():
        lease = lock.try_acquire()
        try:
            lease.release()
        finally:
            lease.release()

    return action


def call_a_locked_function(stay):
    @stay.locked("invoice:{number}")
    def pay(number):
        return number

    return lambda: pay(42)


OPERATIONS = [
    enter_and_leave,
    enter_a_new_lock,
    enter_a_semaphore,
    read_and_write,
    enter_twice,
    acquire_and_release,
    try_and_release,
    call_a_locked_function,
]


def left_over(stay):
    """Return what an interrupted operation has left behind; nothing, if it is as it should be."""
    core, view = stay.internals.core, stay.locks.inspect(NAME)
    return [
        part
        for part in (view.holders, view.queue, core.held_leases, core.keeper._leases, core.latches, core.callers)
        if part
    ]


def assert_nothing_left(stay, n):
    assert eventually(lambda: not left_over(stay), 10), f"at instruction {n}: {left_over(stay)}"


@HOW
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_interrupt_at_any_instruction_leaves_no_lock_held(connect, operation, how):
    stay = connect("memory://")
    action = operation(stay)
    action()
    stride = (1 if operation in (enter_and_leave, acquire_and_release) else 5) * (1 if how == "raise" else 3)
    assert walk(how, action, lambda n, _: assert_nothing_left(stay, n), stride=stride) > 0
    action()


@HOW
@pytest.mark.parametrize("operation", [enter_and_leave, acquire_and_release, enter_twice])
def test_an_interrupt_leaves_no_lock_held_on_any_engine(connect, shared_url, operation, how):
    stay = connect(shared_url)
    action = operation(stay)
    action()
    assert walk(how, action, lambda n, _: assert_nothing_left(stay, n), stride=17) > 0
    action()


@HOW
def test_an_interrupt_of_the_first_acquire_leaves_no_lock_held(connect, how):
    """The first acquire starts the threads of the engine and of the keeper."""
    for n in range(0, 100_000, 31):
        stay = connect("memory://")
        interrupts = Interrupts(how, n)
        interrupts.run(enter_a_new_lock(stay))
        assert_nothing_left(stay, n)
        enter_a_new_lock(stay)()
        stay.close()
        if not interrupts.fired:
            return
    raise AssertionError("too many instructions")


@HOW
def test_an_interrupt_while_waiting_leaves_no_ticket(connect, shared_url, how):
    """A waiter that is interrupted leaves the queue, wherever it is: it enters the queue, sleeps or gives up."""
    holder, stay = connect(shared_url), connect(shared_url)
    lock = stay.lock(NAME, wait=0.002)

    def action():
        with suppress(LockTimeout), lock:
            pass

    with holder.lock(NAME):
        action()

        def check(n, _):
            core = stay.internals.core

            def is_gone():
                return not stay.locks.inspect(NAME).queue and not core.latches and not core.callers

            assert eventually(is_gone, 10), n

        assert walk(how, action, check, stride=23) > 0
    assert_nothing_left(stay, "after the holder's release")


@HOW
def test_an_interrupt_of_a_waiter_that_gets_the_lock_leaves_it_free(connect, shared_url, how):
    holder, stay = connect(shared_url), connect(shared_url)
    lock = stay.lock(NAME)
    held = []

    def release():
        held[-1].release()

    def on_event(event):
        if event.kind == "lock.queued":
            thread = threading.Thread(target=release)
            thread.start()
            thread.join()

    stay.telemetry.subscribe(on_event)

    def action():
        with lock:
            pass

    def check(n, _):
        held[-1].release()
        assert_nothing_left(stay, n)
        held.append(holder.lock(NAME).acquire(wait=WITHIN))

    held.append(holder.lock(NAME).acquire())
    assert walk(how, action, check, stride=41) > 0


def test_an_interrupted_block_gives_its_lock_back_while_the_traceback_is_kept(connect):
    """The lock is free at once, not when the program drops the exception."""
    stay = connect("memory://")
    lock = stay.lock(NAME)
    kept = []

    def action():
        try:
            with lock:
                pass
        except KeyboardInterrupt as error:
            kept.append(error)
            raise

    action()
    gc.disable()
    try:
        assert walk("raise", action, lambda n, _: assert_nothing_left(stay, n), stride=5) > 0
    finally:
        gc.enable()
    assert kept


def test_a_lease_that_the_program_dropped_stays_held(connect):
    """`stay.lock(name).try_acquire()` without a variable: the lock belongs to the process until it ends."""
    stay = connect("memory://")
    assert stay.lock(NAME).try_acquire() is not None
    gc.collect()
    assert stay.locks.inspect(NAME).held
    assert stay.internals.core.keeper._leases
