"""Conformance tests of workflow runs in a job store, for any engine."""

from backstay.testing.conformance.run.adding import RunAddingTests
from backstay.testing.conformance.run.artifacts import RunArtifactsTests
from backstay.testing.conformance.run.cancelling import RunCancellingTests
from backstay.testing.conformance.run.concurrency import RunConcurrencyTests
from backstay.testing.conformance.run.conditions import RunConditionsTests
from backstay.testing.conformance.run.deadlines import RunDeadlinesTests
from backstay.testing.conformance.run.defining import RunDefiningTests
from backstay.testing.conformance.run.ending import RunEndingTests
from backstay.testing.conformance.run.events import RunEventsTests
from backstay.testing.conformance.run.hostile_input import RunHostileInputTests
from backstay.testing.conformance.run.pruning import RunPruningTests
from backstay.testing.conformance.run.queries import RunQueriesTests
from backstay.testing.conformance.run.rerunning import RunRerunningTests
from backstay.testing.conformance.run.retrying import RunRetryingTests
from backstay.testing.conformance.run.starting import RunStartingTests
from backstay.testing.conformance.run.status import RunStatusTests
from backstay.testing.conformance.run.tokens import RunTokensTests
from backstay.testing.conformance.run.traps import RunTrapsTests

__all__ = ["RunSuite"]


class RunSuite(
    RunStartingTests,
    RunConditionsTests,
    RunEndingTests,
    RunAddingTests,
    RunCancellingTests,
    RunRetryingTests,
    RunRerunningTests,
    RunStatusTests,
    RunEventsTests,
    RunQueriesTests,
    RunDeadlinesTests,
    RunConcurrencyTests,
    RunPruningTests,
    RunDefiningTests,
    RunArtifactsTests,
    RunTokensTests,
    RunHostileInputTests,
    RunTrapsTests,
):
    """All conformance tests of runs. Subclass it and give it a fixture `store` that returns a `StoreDriver`."""
