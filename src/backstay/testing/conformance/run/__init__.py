"""What a job store promises of workflow runs, as claims that any store can be held to."""

from backstay.testing.conformance.run.adding import Adding
from backstay.testing.conformance.run.again import Again
from backstay.testing.conformance.run.cancelling import Cancelling
from backstay.testing.conformance.run.conditions import Conditions
from backstay.testing.conformance.run.defining import Defining
from backstay.testing.conformance.run.ending import Ending
from backstay.testing.conformance.run.files import Files
from backstay.testing.conformance.run.hostile import Hostile
from backstay.testing.conformance.run.looking import Looking
from backstay.testing.conformance.run.meeting import Meeting
from backstay.testing.conformance.run.pruning import Pruning
from backstay.testing.conformance.run.rerunning import Rerunning
from backstay.testing.conformance.run.starting import Starting
from backstay.testing.conformance.run.telling import Telling
from backstay.testing.conformance.run.tokens import Tokens
from backstay.testing.conformance.run.traps import RunTraps
from backstay.testing.conformance.run.watching_over import WatchingOver

__all__ = ["RunSuite"]


class RunSuite(
    Starting,
    Conditions,
    Ending,
    Adding,
    Cancelling,
    Again,
    Rerunning,
    Telling,
    Looking,
    WatchingOver,
    Meeting,
    Pruning,
    Defining,
    Files,
    Tokens,
    Hostile,
    RunTraps,
):
    """All claims about runs. Needs a fixture `store`: a `StoreDriver`, as `JobSuite` does."""
