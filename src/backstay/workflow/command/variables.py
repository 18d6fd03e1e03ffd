"""The environment of a command: little of the worker's own, and everything that the run has to say.

Of the worker's variables, a command gets those in `PLAIN` and those that were asked for by name or by pattern. A
pattern never brings what looks like a secret: that has to be named in full. So neither the engine's URL nor a token of
the worker's reaches a command by accident.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from backstay.errors import ConfigError

#: What every program may need, and what betrays nothing.
PLAIN = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TMPDIR",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "VIRTUAL_ENV",
    "SYSTEMROOT",
)
#: Names of variables that hold a secret.
SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE|COOKIE|(^|_)(PASS|PAT|KEYS?|APIKEY|AUTH)($|_)|^PGPASS",
    re.IGNORECASE,
)
#: Names of variables that say where a server is and how to get in.
ADDRESS = re.compile(r"^BACKSTAY_|(^|_)(URL|URI|DSN)$", re.IGNORECASE)
#: A URL with a password in it.
SECRET_VALUE = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s:]*:(?P<password>[^/@\s]+)@", re.IGNORECASE)

#: A shorter value may be an ordinary word, and a path is none: hiding them would make logs unreadable.
SHORTEST_HIDDEN = 8

#: Bytes that go to a command as NEEDS_…: a kernel takes about two million for everything.
LARGEST_NEEDS = 512 * 1024
#: What a value may be at most: where one variable ends on Linux.
LARGEST_VARIABLE = 128 * 1024 - 1024
NAME = re.compile(r"[^A-Z0-9]+")


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable is given out only when it is asked for in full."""
    return any(
        (SECRET_NAME.search(name), ADDRESS.search(name), SECRET_VALUE.search(value)),
    )


def inherited(wanted: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What of the worker's environment a command gets: `PLAIN`, and what `wanted` names; patterns have a `*`."""
    source = os.environ if environ is None else environ
    exact = {name for name in wanted if "*" not in name}
    patterns = [pattern for pattern in (*PLAIN, *wanted) if "*" in pattern]
    exact.update(name for name in PLAIN if "*" not in name)
    return {
        name: value
        for name, value in source.items()
        if name in exact or (any(fnmatchcase(name, pattern) for pattern in patterns) and not looks_secret(name, value))
    }


def worth_hiding(environ: Mapping[str, str] | None = None) -> list[str]:
    """Values of the worker's own variables that look like secrets, and the passwords in its URLs."""
    source = os.environ if environ is None else environ
    found: list[str] = []
    for name, value in source.items():
        found += [url["password"] for url in SECRET_VALUE.finditer(value)]
        if SECRET_NAME.search(name) and len(value) >= SHORTEST_HIDDEN and not value.startswith("/"):
            found.append(value)
    return found


def variable(name: str) -> str:
    """A name as part of a variable: upper case, and one _ for whatever is neither letter nor digit. "test (3.11)" is
    TEST_3_11.
    """
    return NAME.sub("_", name.upper()).strip("_")


class Given:
    """The variables that tell a command of its run. Two that would have one name are refused: neither may win."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._whose: dict[str, str] = {}

    def put(self, name: str, value: str, whose: str) -> None:
        if name in self._whose and self._whose[name] != whose:
            raise ConfigError(f"{self._whose[name]} and {whose} would both be the variable {name}; rename one of them")
        if "\0" in value:
            raise ConfigError(f"{whose} has a NUL, which no environment can carry")
        if len(value.encode(errors="surrogateescape")) > LARGEST_VARIABLE:
            raise ConfigError(f"{whose} has more than {LARGEST_VARIABLE} bytes, which no environment can carry")
        self._whose[name] = whose
        self.values[name] = value


def inputs_and_needs(inputs: Mapping[str, str], needs: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, str], bool]:
    """INPUT_<NAME>, NEEDS_<JOB>_<KEY> and NEEDS_<JOB>_RESULT; False: the needs were too many and are left out."""
    given = Given()
    for name, value in inputs.items():
        given.put(f"INPUT_{variable(name)}", value, f"input {name!r}")
    fixed = dict(given.values)
    size = 0
    for job, outputs in needs.items():
        for key, value in outputs.items():
            given.put(f"NEEDS_{variable(job)}_{variable(key)}", value, f"output {key!r} of {job!r}")
            size += len(job) + len(key) + len(value.encode(errors="surrogateescape")) + 8
            if size > LARGEST_NEEDS:
                return fixed, False
    return given.values, True


def needs_document(needs: Mapping[str, Mapping[str, str]]) -> str:
    """All outputs of the jobs before, as JSON: job, key, value."""
    return json.dumps(needs, ensure_ascii=False, indent=1)


def check_env(env: Mapping[str, str], where: str) -> None:
    """Refuse what no environment can carry."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            raise ConfigError(f"{name!r} in the env of {where} is no name of a variable")
        if "\0" in value:
            raise ConfigError(f"{name} in the env of {where} has a NUL, which no environment can carry")
        if len(value.encode(errors="surrogateescape")) > LARGEST_VARIABLE:
            raise ConfigError(f"{name} in the env of {where} has more than {LARGEST_VARIABLE} bytes")
