"""Reserved names: queues and job types that programs cannot define."""

from __future__ import annotations

#: The prefix of reserved names.
RESERVED = "backstay."
#: The queue of internal jobs. Every worker also claims from it; the priority of internal jobs makes them start first.
INTERNAL = "backstay"
#: Internal job types of workflow runs: evaluate a job's condition, fan a job out over a list, gather the results.
DECIDE, MAP, GATHER = "backstay.decide", "backstay.map", "backstay.gather"
#: The queue and type of jobs that run commands. Only workers with `allow_commands=True` claim from this queue and know
#: the type.
COMMANDS = "backstay.commands"
COMMAND = "backstay.command"


def is_internal(type_: str) -> bool:
    """Whether jobs of this type are internal steps of a workflow run, not jobs that the user defined."""
    return type_ in (DECIDE, MAP, GATHER)
