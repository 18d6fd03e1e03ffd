"""`close()` of a blocking Backstay ends all threads that it has started."""

from __future__ import annotations

import threading

from backstay import sync
from backstay.job.api.announcer import ANNOUNCER
from backstay.testing.waiting import eventually


def backstay_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("backstay")}


def test_close_ends_every_thread(engine_url, namespace):
    before = backstay_threads()
    stay = sync.Backstay(engine_url, namespace=namespace)

    @stay.job
    def resize(path: str) -> str:
        return path

    with stay.lock("invoice:42"), stay.hub.listen("news"):
        for number in range(3):
            resize.enqueue(f"{number}.png")
        stay.jobs.enqueue("later", {}, delay=1)
        assert any(thread.name == "backstay-announcer" for thread in backstay_threads()) or engine_url == "memory://"
    stay.close()
    assert backstay_threads() - before == set()


def test_an_announcement_after_close_starts_no_thread(namespace):
    """A job that another thread enqueues while the Backstay closes is not announced; workers find it by polling."""
    before = backstay_threads()
    stay = sync.Backstay("memory://", namespace=namespace)
    announcer = stay.internals.core.services.get(ANNOUNCER)
    announcer.announce({"resize": 1})
    stay.close()
    announcer.announce({"resize": 1})
    assert eventually(lambda: backstay_threads() - before == set(), 1)
