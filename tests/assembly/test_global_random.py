"""The module `random` belongs to the application: Backstay neither draws from its generator nor seeds it."""

from __future__ import annotations

import random

from backstay import exponential


def test_no_part_draws_from_the_global_generator(connect, engine_url):
    before = random.getstate()
    stay = connect(engine_url)

    @stay.job(retries=2, backoff=exponential(60, jitter=True))
    def fail():
        raise ValueError("again")

    with stay.lock("x"), stay.semaphore("y", permits=2):
        handle = fail.enqueue()
    stay.limit("api", "10/minute").hit("k")
    with stay.hub.listen("news"):
        stay.hub.publish("news", "one")
    stay.worker(queues={"default": 2, "other": 1}).run(burst=True)
    assert handle.status() == "scheduled"  # by a retry, whose delay is random
    assert random.getstate() == before
