"""What a job store promises, as claims that any store can be held to."""

from holdfast.testing.conformance.job.bad_input import BadInput
from holdfast.testing.conformance.job.bench import Bench, Desk, StoreDriver
from holdfast.testing.conformance.job.blocking import Blocking
from holdfast.testing.conformance.job.by_hand import ByHand
from holdfast.testing.conformance.job.chaining import Chaining
from holdfast.testing.conformance.job.claiming import Claiming
from holdfast.testing.conformance.job.concurrency import PerKey
from holdfast.testing.conformance.job.drivers import LocalStoreDriver, ModelDriver
from holdfast.testing.conformance.job.enqueueing import Enqueueing
from holdfast.testing.conformance.job.finishing import Finishing
from holdfast.testing.conformance.job.lanes import Lanes
from holdfast.testing.conformance.job.leavings import Leavings
from holdfast.testing.conformance.job.listing import Listing
from holdfast.testing.conformance.job.pausing import Pausing
from holdfast.testing.conformance.job.pruning import Pruning
from holdfast.testing.conformance.job.rating import Rating
from holdfast.testing.conformance.job.reaping import Reaping
from holdfast.testing.conformance.job.registry import Registry
from holdfast.testing.conformance.job.remote import RemoteStoreDriver
from holdfast.testing.conformance.job.retrying import Retrying
from holdfast.testing.conformance.job.ticking import Ticking
from holdfast.testing.conformance.job.traps import Traps
from holdfast.testing.conformance.job.uniqueness import Uniqueness
from holdfast.testing.conformance.job.waking import Fleet, LostHubSuite, WakingSuite
from holdfast.testing.conformance.job.watching import Watching

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
