"""What a worker gives to the commands it runs: put together once, when it starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from backstay.errors import ConfigError
from backstay.workflow.command import variables as environment
from backstay.workflow.command.masking import SHORTEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a worker gives to the commands it runs."""

    directory: str = "."
    #: Variables of the worker's own.
    environment: Mapping[str, str] = field(default_factory=environment.inherited)
    #: Values that are hidden.
    secrets: tuple[str, ...] = ()
    #: Seconds between SIGTERM and SIGKILL.
    grace: float = 5.0
    #: Where the files that commands leave are kept; "": in the engine.
    artifacts: str = ""


def surroundings(
    pass_env: Iterable[str],
    secrets: Iterable[str] | Mapping[str, str],
    directory: str | Path,
    grace: float,
    artifacts: str | Path = "",
) -> Surroundings:
    """What a worker gives to its commands. Raises ConfigError."""
    for given, what in ((pass_env, "pass_env"), (secrets, "secrets")):
        if isinstance(given, str):
            raise ConfigError(f"{what} is a list, as in {what}=[{given!r}]")
    hidden: dict[str, str] = {}
    if isinstance(secrets, Mapping):
        hidden.update(cast("Mapping[str, str]", secrets))
    else:
        for name in secrets:
            value = os.environ.get(name)
            if value is None:
                raise ConfigError(f"secret {name!r} is not set in the environment of this worker")
            hidden[name] = value
    for name, value in hidden.items():
        if len(value) < SHORTEST:
            raise ConfigError(f"secret {name!r} has fewer than {SHORTEST} characters: it cannot be hidden in logs")
    place = Path(directory)
    if not place.is_dir():
        raise ConfigError(f"there is no directory {str(place)!r} to run commands in")
    return Surroundings(
        directory=str(place.absolute()),
        environment={**environment.inherited(tuple(pass_env)), **hidden},
        secrets=(*environment.worth_hiding(), *hidden.values()),
        grace=grace,
        artifacts=str(Path(artifacts).absolute()) if artifacts else "",
    )
