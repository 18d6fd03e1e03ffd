"""Find what the Python of a Code node uses beyond its inputs. The code is parsed with `ast` and never run."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from backstay.n8n.analysis.purity import Impurity, Kind

#: Modules of the standard library that Code may import without being reported: they have no side effects.
_PURE = frozenset(
    (
        "__future__",
        "base64",
        "bisect",
        "calendar",
        "collections",
        "copy",
        "csv",
        "dataclasses",
        "datetime",
        "decimal",
        "difflib",
        "enum",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "html",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "statistics",
        "string",
        "textwrap",
        "typing",
        "unicodedata",
        "uuid",
        "zoneinfo",
    )
)
_NETWORK = frozenset(
    (
        "aiohttp",
        "ftplib",
        "http",
        "httpx",
        "imaplib",
        "js",
        "poplib",
        "pyodide",
        "requests",
        "smtplib",
        "socket",
        "ssl",
        "urllib",
        "urllib3",
    )
)
_TIMERS = frozenset({"sched", "threading", "time"})
_SYSTEM = frozenset(
    (
        "builtins",
        "ctypes",
        "importlib",
        "inspect",
        "multiprocessing",
        "os",
        "pathlib",
        "shutil",
        "signal",
        "subprocess",
        "sys",
    )
)
_NAMES: dict[str, Kind] = {
    **dict.fromkeys(
        ("eval", "exec", "compile", "open", "globals", "breakpoint", "__builtins__", "_env", "_secrets"), "system"
    ),
    "__import__": "modules",
    "input": "system",
    "_getWorkflowStaticData": "state",
}
#: In Python, n8n's variables start with an underscore.
_VARIABLES = frozenset({"_binary", "_itemIndex", "_jmespath", "_parameter", "_prevNode", "_runIndex", "_vars"})
_DUNDERS = frozenset({"__class__", "__subclasses__", "__globals__", "__bases__", "__mro__", "__dict__", "__code__"})


class PythonSyntaxError(Exception):
    """Code that Python cannot parse."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


@dataclass(frozen=True, slots=True)
class PythonCode:
    """The Python of one Code node: whether it is empty, its comments, and what it uses beyond its inputs."""

    empty: bool
    comments: list[tuple[str, int]]
    impurities: list[Impurity]


def read_python(code: str) -> PythonCode:
    """Parse the code. Raise PythonSyntaxError when it is invalid. A top-level `return` is valid, because n8n wraps the
    code in a function.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except SyntaxError as error:
        raise PythonSyntaxError(error.msg, error.lineno or 1) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise PythonSyntaxError(str(error) or "the code is nested too deeply", 1) from error
    seen: set[str] = set()
    found: list[Impurity] = []
    for kind, what, line in sorted(_impurities(tree), key=lambda each: each[2]):
        if what not in seen:
            seen.add(what)
            found.append((kind, what, line))
    return PythonCode(not tree.body, _comments(code), found)


def _comments(code: str) -> list[tuple[str, int]]:
    try:
        return [
            (token.string, token.start[0])
            for token in tokenize.generate_tokens(io.StringIO(code).readline)
            if token.type == tokenize.COMMENT
        ]
    except (tokenize.TokenError, SyntaxError):
        return []


def _impurities(tree: ast.Module) -> Iterator[Impurity]:
    own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield from _module(alias.name, node.lineno)
            case ast.ImportFrom(module=module):
                yield from _module(module or ".", node.lineno)
            case ast.Name(id=name) if name not in own:
                if name in _NAMES:
                    yield _NAMES[name], name, node.lineno
                elif name in _VARIABLES:
                    yield "variables", name, node.lineno
            case ast.Attribute(attr=attr) if attr in _DUNDERS:
                yield "system", f".{attr}", node.lineno
            case _:
                pass


def _module(name: str, line: int) -> Iterator[Impurity]:
    top = name.partition(".")[0]
    if top in _PURE:
        return
    kinds: dict[Kind, frozenset[str]] = {"network": _NETWORK, "timers": _TIMERS, "system": _SYSTEM}
    kind: Kind = "modules"
    for each, modules in kinds.items():
        kind = each if top in modules else kind
    yield kind, f"import {name}", line
