"""Names that Backstay keeps for itself: queues and job types that no program defines."""

from __future__ import annotations

#: What a name of Backstay's own begins with.
RESERVED = "backstay."
#: Where Backstay's own jobs wait: every worker looks there, too. Their priority puts them first.
INTERNAL = "backstay"
#: What a run does between its jobs: decide whether one is to be done, spread one over a list, gather what came of it.
DECIDE, MAP, GATHER = "backstay.decide", "backstay.map", "backstay.gather"
#: Jobs that run commands wait in a queue of their own. Workers take it only when they were started with
#: `allow_commands=True`; others do not even see what is in it, nor know the type.
COMMANDS = "backstay.commands"
COMMAND = "backstay.command"


def is_internal(type_: str) -> bool:
    """Whether a job of this type only decides about another one, or gathers for it."""
    return type_ in (DECIDE, MAP, GATHER)
