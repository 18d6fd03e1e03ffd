"""Conformance tests of the job store, for any engine."""

from backstay.testing.conformance.job.bad_input import BadInput
from backstay.testing.conformance.job.bench import Bench, Client, StoreDriver
from backstay.testing.conformance.job.claims.claiming import Claiming
from backstay.testing.conformance.job.claims.concurrency import PerKey
from backstay.testing.conformance.job.claims.lost_replies import LostReplies
from backstay.testing.conformance.job.claims.pausing import Pausing
from backstay.testing.conformance.job.claims.rating import Rating
from backstay.testing.conformance.job.claims.reaping import Reaping
from backstay.testing.conformance.job.drivers import LocalStoreDriver
from backstay.testing.conformance.job.lifecycle.admin import Admin
from backstay.testing.conformance.job.lifecycle.blocking import Blocking
from backstay.testing.conformance.job.lifecycle.chaining import Chaining
from backstay.testing.conformance.job.lifecycle.enqueueing import Enqueueing
from backstay.testing.conformance.job.lifecycle.finishing import Finishing
from backstay.testing.conformance.job.lifecycle.retrying import Retrying
from backstay.testing.conformance.job.lifecycle.uniqueness import Uniqueness
from backstay.testing.conformance.job.records.job_output import JobOutput
from backstay.testing.conformance.job.records.listing import Listing
from backstay.testing.conformance.job.records.pruning import Pruning
from backstay.testing.conformance.job.records.registry import Registry
from backstay.testing.conformance.job.records.ticking import Ticking
from backstay.testing.conformance.job.records.watching import Watching
from backstay.testing.conformance.job.remote import RemoteStoreDriver
from backstay.testing.conformance.job.traps import Traps
from backstay.testing.conformance.job.waking import Fleet, LostHubSuite, WakingSuite

__all__ = [
    "Bench",
    "Client",
    "Fleet",
    "JobSuite",
    "LocalStoreDriver",
    "LostHubSuite",
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
    LostReplies,
    Uniqueness,
    Blocking,
    Chaining,
    PerKey,
    Rating,
    Pausing,
    Admin,
    Watching,
    JobOutput,
    Registry,
    Ticking,
    Listing,
    Pruning,
    BadInput,
    Traps,
):
    """All conformance tests of a job store. Needs a fixture `store`: a `StoreDriver`."""
