"""What a job store promises of workflow runs, as claims that any store can be held to."""

from holdfast.testing.conformance.run.adding import Adding
from holdfast.testing.conformance.run.again import Again
from holdfast.testing.conformance.run.cancelling import Cancelling
from holdfast.testing.conformance.run.conditions import Conditions
from holdfast.testing.conformance.run.defining import Defining
from holdfast.testing.conformance.run.ending import Ending
from holdfast.testing.conformance.run.files import Files
from holdfast.testing.conformance.run.hostile import Hostile
from holdfast.testing.conformance.run.looking import Looking
from holdfast.testing.conformance.run.meeting import Meeting
from holdfast.testing.conformance.run.pruning import Pruning
from holdfast.testing.conformance.run.rerunning import Rerunning
from holdfast.testing.conformance.run.starting import Starting
from holdfast.testing.conformance.run.telling import Telling
from holdfast.testing.conformance.run.tokens import Tokens
from holdfast.testing.conformance.run.traps import RunTraps
from holdfast.testing.conformance.run.watching_over import WatchingOver

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
