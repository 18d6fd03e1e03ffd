"""A lock in threads: `backstay.sync` has the same names without `await`. Processes can share the file as well."""

import tempfile
import threading
import time

from backstay.sync import Backstay


def pay(stay: Backstay, who: str) -> None:
    with stay.lock("invoice:42", ttl=10, wait=5) as lease:
        print(f"{who} holds {lease.name}, fence {lease.fence}")
        time.sleep(0.1)
        lease.check()  # raises LeaseLost unless the lease is certainly valid; call it before an irreversible step


with tempfile.TemporaryDirectory() as folder, Backstay(f"sqlite:///{folder}/backstay.db") as stay:
    threads = [threading.Thread(target=pay, args=(stay, who)) for who in ("Ada", "Bo", "Cleo")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
