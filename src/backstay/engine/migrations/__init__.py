"""The schema's scripts, one folder for each SQL engine. A released one never changes."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from backstay.errors import SchemaTooNew


@cache
def scripts(engine: str) -> list[str]:
    """An engine's scripts, oldest first."""
    folder = files("backstay.engine.migrations") / engine
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".sql"))
    return [folder.joinpath(name).read_text() for name in names]


def missing(engine: str, have: int, where: str) -> list[str]:
    """What a schema of version `have` still needs. A newer one than this code knows is refused."""
    known = scripts(engine)
    if have > len(known):
        raise SchemaTooNew(
            f"{where} has schema {have}, this Backstay knows {len(known)}: upgrade the package before opening it"
        )
    return known[have:]
