"""`stay._core` is for the runtime, the assembly and the object itself; other modules use `stay.internals`."""

from __future__ import annotations

import ast
from pathlib import Path

import backstay

PACKAGE = Path(backstay.__file__).parent
#: These packages create the core and connect its parts.
ALLOWED = ("runtime", "assembly")


def reaches(tree: ast.AST) -> list[int]:
    """Return the lines that use `_core` of an object other than self."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "_core"
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]


def test_no_module_uses_the_core_of_another_object():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in ALLOWED
        for line in reaches(ast.parse(path.read_text()))
    ]
    assert found == [], "use stay.internals"


def test_the_check_finds_uses_of_another_objects_core():
    assert sorted(reaches(ast.parse("self._core\nstay._core.hub\nself.stay._core\n"))) == [2, 3]
