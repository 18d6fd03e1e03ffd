"""What the exit code of `backstay` means. Scripts rely on these: they never change."""

from __future__ import annotations

from backstay.errors import (
    BackstayError,
    BadInput,
    ConfigError,
    EngineError,
    LeaseLost,
    LockHeld,
    LockTimeout,
    N8nUnreachable,
    QueueFull,
)

OK = 0
#: Understood and refused: not the owner, nobody holds it, not confirmed.
FAILED = 1
#: A wrong option, or settings that cannot work.
USAGE = 2
#: The engine cannot be reached, or does not serve us; nor does an n8n.
ENGINE = 3
#: `doctor`: what it found. The same numbers as above, for the same reasons.
WARNINGS = 1
PROBLEMS = 2
#: `lock`: not free in time. sysexits.h: EX_TEMPFAIL, try again later.
NOT_ACQUIRED = 75
#: `lock`: the lease ended before the command did.
LEASE_LOST = 76
#: `lock`: as shells say it.
NOT_EXECUTABLE = 126
NOT_FOUND = 127
#: `lock`: plus the number of the signal that ended the command, or the wait for the lock.
SIGNALLED = 128


def of(error: BackstayError) -> int:
    """The exit code that an error ends with."""
    match error:
        case ConfigError() | BadInput():
            return USAGE
        case EngineError() | N8nUnreachable():
            return ENGINE
        case LockHeld() | LockTimeout() | QueueFull():
            return NOT_ACQUIRED
        case LeaseLost():
            return LEASE_LOST
        case _:
            return FAILED
