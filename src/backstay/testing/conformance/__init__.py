"""Certify a set-up: one suite of claims, played by actors in one process or in several.

In your own test-suite, with your own URL:

```python
import pytest
from backstay.testing.conformance import (
    AsyncDriver,
    BlockingDriver,
    GateSuite,
    HubSuite,
    IdempotencySuite,
    LimitSuite,
    ProcessDriver,
)

URL = "redis://127.0.0.1:6379/0"


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver, ProcessDriver])
def driver(request):
    with request.param(URL) as driver:
        yield driver


class TestOurRedis(GateSuite, HubSuite, LimitSuite, IdempotencySuite):
    pass
```

`AsyncDriver` plays on the async API (each actor a task), `BlockingDriver` on the blocking API (each actor a thread),
`ProcessDriver` on both, in three processes. Add `CrashSuite` and `IdempotencyCrashSuite` with a `ProcessDriver` to have
processes killed and stopped. A driver takes `hub=` as a `Backstay` does, and those in one process a client or pool for
a URL. Every claim plays in a namespace of its own, so nothing of yours is touched; on Redis, records of ended claims
expire by themselves after a day.

`JobSuite` holds the job store itself to its contract, on a clock that the claims set. It needs a fixture `store`: a
`LocalStoreDriver(URL)`, or a `RemoteStoreDriver(URL)` in three processes. Its jobs stay where they were: give it a
server of its own. `RunSuite` does the same for workflow runs, with the same fixture. `WakingSuite` counts what workers
ask when jobs come; it needs a fixture `fleet`: a `Fleet(URL, hub=…)`. `LostHubSuite` kills the hub's server meanwhile:
`Fleet(URL, hub_server=RedisServer().start())`.
"""

from backstay.testing.conformance.driver import Driver, Stage, claim
from backstay.testing.conformance.gate import CrashSuite, GateSuite
from backstay.testing.conformance.hub import HubSuite
from backstay.testing.conformance.idempotency import IdempotencyCrashSuite, IdempotencySuite
from backstay.testing.conformance.inprocess import AsyncDriver, BlockingDriver
from backstay.testing.conformance.job import (
    Fleet,
    JobSuite,
    LocalStoreDriver,
    LostHubSuite,
    RemoteStoreDriver,
    WakingSuite,
)
from backstay.testing.conformance.limit import LimitSuite
from backstay.testing.conformance.processes import ProcessDriver
from backstay.testing.conformance.run import RunSuite

__all__ = [
    "AsyncDriver",
    "BlockingDriver",
    "CrashSuite",
    "Driver",
    "Fleet",
    "GateSuite",
    "HubSuite",
    "IdempotencyCrashSuite",
    "IdempotencySuite",
    "JobSuite",
    "LimitSuite",
    "LocalStoreDriver",
    "LostHubSuite",
    "ProcessDriver",
    "RemoteStoreDriver",
    "RunSuite",
    "Stage",
    "WakingSuite",
    "claim",
]
