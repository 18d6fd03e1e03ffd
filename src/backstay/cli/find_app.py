"""Find the Backstay that a program defines, by `module:name`."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from backstay import Backstay
from backstay import sync as blocking
from backstay.errors import ConfigError

#: Variables that are tried in this order when the user names only a module.
USUAL_NAMES = ("stay", "app", "backstay")


def find_app(target: str) -> Backstay:
    """Import a module, which registers the program's jobs, and return the module's Backstay, always the async one.

    `target` is `module:name` or only `module`. Without a name, return the module's variable `stay`, `app` or `backstay`
    if it is a Backstay, or else the only Backstay in the module. Raise ConfigError when there is none.
    """
    module_name, _, path = target.partition(":")
    if not module_name:
        raise ConfigError(f"{target!r} names no module; write module:app, as in shop.jobs:stay")
    here = os.getcwd()  # noqa: PTH109 - sys.path needs a string
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"there is no module {error.name!r}; run the command in the directory that contains it (this is {here})"
            ) from error
        raise
    found = _attribute(module, path, target) if path else _find_only(module, module_name)
    if isinstance(found, blocking.Backstay):
        return found._async_twin()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - a worker runs on a loop
    if not isinstance(found, Backstay):
        raise ConfigError(f"{target!r} is a {type(found).__name__}, not a Backstay")
    return found


def _attribute(module: Any, path: str, target: str) -> Any:
    found = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{target!r}: {getattr(found, '__name__', found)!s} has no {part!r}")
        found = getattr(found, part)
    return found


def _find_only(module: ModuleType, name: str) -> Any:
    there = {key: value for key, value in vars(module).items() if isinstance(value, (Backstay, blocking.Backstay))}
    for usual in USUAL_NAMES:
        if usual in there:
            return there[usual]
    if len({id(value) for value in there.values()}) == 1:
        return next(iter(there.values()))
    few = f"several ({', '.join(sorted(there))})" if there else "no"
    raise ConfigError(f"module {name!r} has {few} Backstay; write {name}:NAME")
