"""A program that takes a lock, writes under its guard and prints the outcome.

writer.py URL NAMESPACE STORE ADDRESS VALUE PAUSE, where PAUSE is `before-check`, `before-write` or `never`.
"""

from __future__ import annotations

import sys

from stores import STORES, pause_process

from backstay import LeaseLost, StaleFence
from backstay.sync import Backstay


def main(url, namespace, kind, address, value, pause):
    store = STORES[kind](address, stopping=pause == "before-write")
    with Backstay(url, namespace=namespace) as stay:
        lease = stay.lock("balance:42", ttl=4 if pause != "never" else 30, renew=False).acquire(wait=30)
        print("fence", lease.fence, flush=True)
        if pause == "before-check":
            pause_process()
        try:
            store.write(stay.guard(lease), int(value))
        except StaleFence as error:
            print("stale", error.fence, error.newer, flush=True)
        except LeaseLost as error:
            print("lost", error.fence, flush=True)
        else:
            print("written", flush=True)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
