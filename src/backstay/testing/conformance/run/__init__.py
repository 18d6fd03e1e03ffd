"""Conformance tests of workflow runs in a job store, for any engine."""

from backstay.testing.conformance.run.adding import Adding
from backstay.testing.conformance.run.artifacts import Artifacts
from backstay.testing.conformance.run.cancelling import Cancelling
from backstay.testing.conformance.run.concurrency import Concurrency
from backstay.testing.conformance.run.conditions import Conditions
from backstay.testing.conformance.run.deadlines import Deadlines
from backstay.testing.conformance.run.defining import Defining
from backstay.testing.conformance.run.ending import Ending
from backstay.testing.conformance.run.events import Events
from backstay.testing.conformance.run.hostile_input import HostileInput
from backstay.testing.conformance.run.pruning import Pruning
from backstay.testing.conformance.run.queries import Queries
from backstay.testing.conformance.run.rerunning import Rerunning
from backstay.testing.conformance.run.retrying import Retrying
from backstay.testing.conformance.run.starting import Starting
from backstay.testing.conformance.run.tokens import Tokens
from backstay.testing.conformance.run.traps import RunTraps

__all__ = ["RunSuite"]


class RunSuite(
    Starting,
    Conditions,
    Ending,
    Adding,
    Cancelling,
    Retrying,
    Rerunning,
    Events,
    Queries,
    Deadlines,
    Concurrency,
    Pruning,
    Defining,
    Artifacts,
    Tokens,
    HostileInput,
    RunTraps,
):
    """All conformance tests of runs. Like `JobSuite`, it needs a fixture `store`: a `StoreDriver`."""
