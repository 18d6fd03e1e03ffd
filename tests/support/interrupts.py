"""Interrupt a call at any instruction, as a signal handler that raises may do: Ctrl-C, or a time limit with SIGALRM."""

from __future__ import annotations

import _thread
import dis
import signal
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest

import backstay

PACKAGE = str(Path(backstay.__file__).parent)
RETURN_VALUE = dis.opmap["RETURN_VALUE"]
#: The functions that return a lease to the program. Between their last instruction and the program's next one, the
#: lease belongs to nothing that Backstay can see. CPython runs no signal handler there, so a walk at every instruction
#: leaves these two instructions out; a walk with real signals does not.
RETURNS_TO_PROGRAM = {("blocking.py", "acquire"), ("blocking.py", "try_acquire")}

#: The parts that own a lease or a ticket of the caller. The others (engines, keeper) take locks, and `with lock:` has
#: instructions after its body, before the lock's release, that no handler covers and at which CPython runs none.
OWNERS = (
    "gate",
    "idempotency",
    "assembly",
    "runtime/core.py",
    "runtime/flows.py",
    "runtime/lost_replies.py",
    "runtime/port.py",
)

#: "raise": raise KeyboardInterrupt at an instruction of the OWNERS, at any one. "signal": send a signal before an
#: instruction of any part; CPython then calls the handler at the next place where it does so.
HOW = pytest.mark.parametrize("how", ["raise", "signal"])


class Interrupts:
    """Raises one KeyboardInterrupt in this thread, at the n-th instruction that Backstay's code runs."""

    def __init__(self, how: str, n: int) -> None:
        self.how = how
        self.n = n
        self._traced = tuple(f"{PACKAGE}/{part}" for part in (OWNERS if how == "raise" else ("",)))
        self.passed = 0
        self.fired = False
        # A subscript that sends the signal: after a call, CPython would run the handler here, in the trace function.
        self._send_signal = defaultdict(partial(_thread.interrupt_main, signal.SIGUSR1))

    def run(self, action) -> bool:
        """Run `action` with the interrupt. Return whether it was interrupted."""
        before = signal.signal(signal.SIGUSR1, _raise_interrupt)
        tracer = sys.gettrace()
        try:
            sys.settrace(self._on_call)
            try:
                action()
            finally:
                sys.settrace(None)
            for _ in range(10):  # CPython runs handlers at the end of each turn
                pass
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(tracer)
            signal.signal(signal.SIGUSR1, before)
        return False

    def _on_call(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(self._traced):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._on_instruction

    def _on_instruction(self, frame, event, arg):
        if event != "opcode" or self.fired or (self.how == "raise" and _returns_to_program(frame)):
            return self._on_instruction
        if self.passed == self.n:
            self.fired = True
            sys.settrace(None)
            if self.how == "raise":
                raise KeyboardInterrupt
            return self._send_signal[0]
        self.passed += 1
        return self._on_instruction


def _raise_interrupt(number, frame):
    raise KeyboardInterrupt


def _returns_to_program(frame) -> bool:
    code = frame.f_code
    if code.co_code[frame.f_lasti] != RETURN_VALUE:
        return False
    return (Path(code.co_filename).name, code.co_name) in RETURNS_TO_PROGRAM


def walk(how, action, check, *, stride=1, start=0, most=100_000) -> int:
    """Interrupt `action` at instruction `start`, `start + stride` and so on, until it is no longer interrupted; call
    `check` after each time. Return how often it was interrupted.
    """
    times = 0
    for n in range(start, most, stride):
        interrupts = Interrupts(how, n)
        interrupted = interrupts.run(action)
        check(n, interrupted)
        if not interrupts.fired:
            return times
        times += interrupted
    raise AssertionError(f"more than {most} instructions")
