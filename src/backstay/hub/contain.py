"""Other people's functions run on our threads: whatever they raise stays with them.

Not only an Exception: one that calls `sys.exit()` or raises CancelledError would otherwise end the thread that serves
everybody, with nobody told. Only Ctrl-C in the main thread goes on: it is meant for the program.
"""

from __future__ import annotations

import threading


def contain(error: BaseException) -> None:
    """Returns when `error` is to be logged and forgotten; raises it again when it is the user's Ctrl-C."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
