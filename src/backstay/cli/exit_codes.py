"""The exit codes of `backstay`. Scripts rely on them, so they never change."""

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
#: The command was valid and is refused: the caller is not the owner, the lock is free, or the user did not confirm.
FAILED = 1
#: A wrong option, or settings that do not fit together.
USAGE = 2
#: The engine (or the n8n server) is unreachable or rejects requests.
ENGINE = 3
#: `doctor`: the worst finding. The numbers have the same meaning as above.
WARNINGS = 1
PROBLEMS = 2
#: `lock`: the lock was not free in time. sysexits.h: EX_TEMPFAIL, try again later.
NOT_ACQUIRED = 75
#: `lock`: the lease ended before the command did.
LEASE_LOST = 76
#: `lock`: the shell's codes for a program that cannot run.
NOT_EXECUTABLE = 126
NOT_FOUND = 127
#: `lock`: added to the number of the signal that ended the command or the wait for the lock.
SIGNALLED = 128


def of(error: BackstayError) -> int:
    """The exit code for an error."""
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
