"""Certify a set-up: one suite of claims, played by actors in one process or in several.

In your own test-suite, with your own URL:

```python
import pytest
from holdfast.testing.conformance import (
    AsyncDriver,
    BlockingDriver,
    GateSuite,
    HubSuite,
    LimitSuite,
    ProcessDriver,
)

URL = "redis://127.0.0.1:6379/0"


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver, ProcessDriver])
def driver(request):
    with request.param(URL) as driver:
        yield driver


class TestOurRedis(GateSuite, HubSuite, LimitSuite):
    pass
```

`AsyncDriver` plays on the async API (each actor a task), `BlockingDriver` on the blocking API (each actor a thread),
`ProcessDriver` on both, in three processes. Add `CrashSuite` with a `ProcessDriver` to have processes killed and
stopped. A driver takes `hub=` as a `Holdfast` does, and those in one process a client or pool for a URL. Every claim
plays in a namespace of its own, so nothing of yours is touched; on Redis, records of ended claims expire by themselves
after a day.
"""

from holdfast.testing.conformance.driver import Driver, Stage, claim
from holdfast.testing.conformance.gate import CrashSuite, GateSuite
from holdfast.testing.conformance.hub import HubSuite
from holdfast.testing.conformance.inprocess import AsyncDriver, BlockingDriver
from holdfast.testing.conformance.limit import LimitSuite
from holdfast.testing.conformance.processes import ProcessDriver

__all__ = [
    "AsyncDriver",
    "BlockingDriver",
    "CrashSuite",
    "Driver",
    "GateSuite",
    "HubSuite",
    "LimitSuite",
    "ProcessDriver",
    "Stage",
    "claim",
]
