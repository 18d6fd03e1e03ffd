"""What a job store promises, as claims that any store can be held to."""

from backstay.testing.conformance.job.bad_input import BadInput
from backstay.testing.conformance.job.bench import Bench, Desk, StoreDriver
from backstay.testing.conformance.job.blocking import Blocking
from backstay.testing.conformance.job.by_hand import ByHand
from backstay.testing.conformance.job.chaining import Chaining
from backstay.testing.conformance.job.claiming import Claiming
from backstay.testing.conformance.job.concurrency import PerKey
from backstay.testing.conformance.job.drivers import LocalStoreDriver, ModelDriver
from backstay.testing.conformance.job.enqueueing import Enqueueing
from backstay.testing.conformance.job.finishing import Finishing
from backstay.testing.conformance.job.lanes import Lanes
from backstay.testing.conformance.job.leavings import Leavings
from backstay.testing.conformance.job.listing import Listing
from backstay.testing.conformance.job.pausing import Pausing
from backstay.testing.conformance.job.pruning import Pruning
from backstay.testing.conformance.job.rating import Rating
from backstay.testing.conformance.job.reaping import Reaping
from backstay.testing.conformance.job.registry import Registry
from backstay.testing.conformance.job.remote import RemoteStoreDriver
from backstay.testing.conformance.job.retrying import Retrying
from backstay.testing.conformance.job.ticking import Ticking
from backstay.testing.conformance.job.traps import Traps
from backstay.testing.conformance.job.uniqueness import Uniqueness
from backstay.testing.conformance.job.waking import Fleet, LostHubSuite, WakingSuite
from backstay.testing.conformance.job.watching import Watching

__all__ = [
    "Bench",
    "Desk",
    "Fleet",
    "JobSuite",
    "LocalStoreDriver",
    "LostHubSuite",
    "ModelDriver",
    "RemoteStoreDriver",
    "StoreDriver",
    "WakingSuite",
]


class JobSuite(
    Enqueueing,
    Claiming,
    Finishing,
    Retrying,
    Reaping,
    Lanes,
    Uniqueness,
    Blocking,
    Chaining,
    PerKey,
    Rating,
    Pausing,
    ByHand,
    Watching,
    Leavings,
    Registry,
    Ticking,
    Listing,
    Pruning,
    BadInput,
    Traps,
):
    """All claims about a job store. Needs a fixture `store`: a `StoreDriver`."""
