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
#: The command was valid but had no effect: for example, another caller owns the lock, or the user did not confirm.
FAILED = 1
#: An invalid option, or options that exclude one another.
USAGE = 2
#: The engine (or the n8n server) is unreachable or rejects requests.
ENGINE = 3
#: `doctor` and `n8n doctor`, only with `--strict`: there are warnings, but no problems.
WARNINGS = 1
#: `doctor` and `n8n doctor`: there is at least one problem. `n8n validate`: a file cannot be read.
PROBLEMS = 2
#: `lock` and `limits hit`: the lock was not free in time, or the limit was reached. In sysexits.h: EX_TEMPFAIL.
NOT_ACQUIRED = 75
#: `lock`: the lock was lost while the command ran.
LEASE_LOST = 76
#: `lock`: the command's program is not executable. Shells also exit with 126 in this case.
NOT_EXECUTABLE = 126
#: `lock`: the command's program was not found. Shells also exit with 127 in this case.
NOT_FOUND = 127
#: `lock`: added to the number of the signal that ended the command or the wait for the lock.
SIGNALLED = 128


def for_error(error: BackstayError) -> int:
    """Return the exit code of a command that fails with this error."""
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
