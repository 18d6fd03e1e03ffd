"""Conformance suites: tests that check an engine, a hub and their configuration through the API.

Use them in your test suite, with your URL:

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

A driver creates actors, the callers of a test. With `AsyncDriver` each actor is a task on the async API, with
`BlockingDriver` a thread on the blocking API; `ProcessDriver` has both kinds, in three processes. `CrashSuite` and
`IdempotencyCrashSuite` kill and suspend processes, so they need a `ProcessDriver`. A driver accepts `hub=`, like a
`Backstay`; the two that use one process also accept a client or pool instead of a URL. Each test uses a separate
namespace and does not touch your data. On Redis, the records of a test expire after a day.

`JobSuite` tests the job store directly, with a clock that the tests set. It needs a fixture `store`: a
`LocalStoreDriver(URL)`, or a `RemoteStoreDriver(URL)` for three processes. It does not delete its jobs: use a separate
server. `RunSuite` tests workflow runs with the same fixture. `WakingSuite` counts the requests of workers when jobs are
enqueued; it needs a fixture `fleet`: a `Fleet(URL, hub=…)`. `LostHubSuite` kills the hub's server while jobs run:
`Fleet(URL, hub_server=RedisServer().start())`.
"""

from backstay.testing.conformance.driver import Driver, Stage, driver_test
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
    "driver_test",
]
