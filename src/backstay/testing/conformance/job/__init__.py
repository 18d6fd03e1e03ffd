"""Conformance tests of the job store, for any engine."""

from backstay.testing.conformance.job.bad_input import JobBadInputTests
from backstay.testing.conformance.job.bench import Bench, StoreClient, StoreDriver
from backstay.testing.conformance.job.claims.claiming import JobClaimingTests
from backstay.testing.conformance.job.claims.concurrency import JobPerKeyTests
from backstay.testing.conformance.job.claims.lost_replies import JobLostRepliesTests
from backstay.testing.conformance.job.claims.pausing import JobPausingTests
from backstay.testing.conformance.job.claims.rating import JobRatingTests
from backstay.testing.conformance.job.claims.reaping import JobReapingTests
from backstay.testing.conformance.job.drivers import LocalStoreDriver
from backstay.testing.conformance.job.lifecycle.admin import JobAdminTests
from backstay.testing.conformance.job.lifecycle.blocking import JobBlockingTests
from backstay.testing.conformance.job.lifecycle.chaining import JobChainingTests
from backstay.testing.conformance.job.lifecycle.enqueueing import JobEnqueueingTests
from backstay.testing.conformance.job.lifecycle.finishing import JobFinishingTests
from backstay.testing.conformance.job.lifecycle.retrying import JobRetryingTests
from backstay.testing.conformance.job.lifecycle.uniqueness import JobUniquenessTests
from backstay.testing.conformance.job.records.job_output import JobOutputTests
from backstay.testing.conformance.job.records.listing import JobListingTests
from backstay.testing.conformance.job.records.pruning import JobPruningTests
from backstay.testing.conformance.job.records.registry import JobRegistryTests
from backstay.testing.conformance.job.records.ticking import JobTickingTests
from backstay.testing.conformance.job.records.watching import JobWatchingTests
from backstay.testing.conformance.job.remote import RemoteStoreDriver
from backstay.testing.conformance.job.traps import JobTrapsTests
from backstay.testing.conformance.job.waking import Fleet, LostHubSuite, WakingSuite

__all__ = [
    "Bench",
    "Fleet",
    "JobSuite",
    "LocalStoreDriver",
    "LostHubSuite",
    "RemoteStoreDriver",
    "StoreClient",
    "StoreDriver",
    "WakingSuite",
]


class JobSuite(
    JobEnqueueingTests,
    JobClaimingTests,
    JobFinishingTests,
    JobRetryingTests,
    JobReapingTests,
    JobLostRepliesTests,
    JobUniquenessTests,
    JobBlockingTests,
    JobChainingTests,
    JobPerKeyTests,
    JobRatingTests,
    JobPausingTests,
    JobAdminTests,
    JobWatchingTests,
    JobOutputTests,
    JobRegistryTests,
    JobTickingTests,
    JobListingTests,
    JobPruningTests,
    JobBadInputTests,
    JobTrapsTests,
):
    """All conformance tests of a job store. Subclass it and give it a fixture `store` that returns a `StoreDriver`."""
