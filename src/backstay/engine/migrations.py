"""Load the schema migrations of the SQL engines: `<engine>/migrations/*.sql`. A released migration never changes."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from backstay.errors import SchemaTooNew


@cache
def scripts(engine: str) -> list[str]:
    """Return the migrations of an engine ("sqlite" or "postgres"), oldest first."""
    folder = files(f"backstay.engine.{engine}") / "migrations"
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".sql"))
    return [folder.joinpath(name).read_text() for name in names]


def list_missing(engine: str, have: int, where: str) -> list[str]:
    """Return the migrations that a schema of version `have` still needs. Raises SchemaTooNew if this code is older."""
    known = scripts(engine)
    if have > len(known):
        raise SchemaTooNew(
            f"{where} has schema {have}, this Backstay knows {len(known)}: upgrade the package before opening it"
        )
    return known[have:]
