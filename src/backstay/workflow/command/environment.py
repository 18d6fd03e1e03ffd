"""The environment that a worker gives to its commands, built once when the worker starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from backstay.errors import ConfigError
from backstay.workflow.command.masking import SHORTEST
from backstay.workflow.command.variables import find_secret_values, select_inherited


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnvironment:
    """Directory, variables, secrets and limits that a worker gives to its commands."""

    directory: str = "."
    #: Variables that commands inherit from the worker.
    variables: Mapping[str, str] = field(default_factory=select_inherited)
    #: Values that are masked in logs and outputs.
    secrets: tuple[str, ...] = ()
    #: Seconds between SIGTERM and SIGKILL.
    grace: float = 5.0
    #: Directory in which artifacts are stored; "": in the engine.
    artifacts: str = ""


def build_command_environment(
    pass_env: Iterable[str],
    secrets: Iterable[str] | Mapping[str, str],
    directory: str | Path,
    grace: float,
    artifacts: str | Path = "",
    urls: Iterable[str] = (),
) -> CommandEnvironment:
    """Build the environment from the options of a worker. `urls`: the URLs that the worker connects to; their passwords
    are masked, and those on the worker's command line. Raises ConfigError.
    """
    for given, what in ((pass_env, "pass_env"), (secrets, "secrets")):
        if isinstance(given, str):
            raise ConfigError(f"{what}= must be a list, as in {what}=[{given!r}]")
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
            raise ConfigError(f"secret {name!r} has fewer than {SHORTEST} characters: it cannot be masked in logs")
    place = Path(directory)
    if not place.is_dir():
        raise ConfigError(f"the directory for commands, {str(place)!r}, does not exist")
    return CommandEnvironment(
        directory=str(place.absolute()),
        variables={**select_inherited(tuple(pass_env)), **hidden},
        secrets=(*find_secret_values(texts=(*urls, *sys.argv)), *hidden.values()),
        grace=grace,
        artifacts=str(Path(artifacts).absolute()) if artifacts else "",
    )
