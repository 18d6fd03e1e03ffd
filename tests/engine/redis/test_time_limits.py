"""A time limit of the program (SIGALRM) that ends while Backstay waits for Redis raises in the program."""

from __future__ import annotations

import signal
import time

import pytest

from backstay import sync

pytestmark = pytest.mark.redis


class TimeLimit:
    """Raises TimeoutError in the main thread after some seconds."""

    def __init__(self, seconds):
        self._seconds = seconds

    def __enter__(self):
        self._before = signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _raise(self, number, frame):
        raise TimeoutError("the program's time limit")


def test_a_time_limit_is_not_taken_for_a_lost_reply(backstay_redis, namespace):
    """The handler's TimeoutError looks like that of a socket; the command must not be sent again in its place."""
    with sync.Backstay(backstay_redis.url, namespace=namespace) as stay:
        stay.open()
        stay.engine._thread_link().call_many([b"*3\r\n$6\r\nCLIENT\r\n$5\r\nPAUSE\r\n$4\r\n2000\r\n"])
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="the program's time limit"), TimeLimit(0.2):
            stay.locks.inspect("invoice:42")
        assert time.monotonic() - began < 1.5
