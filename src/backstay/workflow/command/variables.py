"""Environment variables of a command: a few variables of the worker, and the variables of the run.

A command inherits the worker's variables in `PLAIN` and those that `pass_env` names, exactly or by pattern. A variable
that looks secret must be named exactly: no pattern matches it. So the engine's URL or a token of the worker does not
leak to commands by accident.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from urllib.parse import unquote

from backstay.errors import ConfigError

#: Harmless variables that every program may need.
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
#: Names of variables that probably hold a secret.
SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE|COOKIE|(^|_)(PASS|PAT|KEYS?|APIKEY|AUTH)($|_)|^PGPASS",
    re.IGNORECASE,
)
#: Names of variables that probably hold an address with credentials.
ADDRESS = re.compile(r"^BACKSTAY_|(^|_)(URL|URI|DSN)$", re.IGNORECASE)
#: A URL with a password in it.
SECRET_VALUE = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s:]*:(?P<password>[^/@\s]+)@", re.IGNORECASE)

#: Shorter values of variables are not masked: they may be ordinary words, and masking those makes logs unreadable. For
#: the same reason, paths are not masked.
SHORTEST_HIDDEN = 8

#: The most bytes of all NEEDS_… variables; Linux limits arguments and environment together to about 2 MB.
LARGEST_NEEDS = 512 * 1024
#: The most bytes of one value; Linux limits one variable to 128 KiB.
LARGEST_VARIABLE = 128 * 1024 - 1024
NAME = re.compile(r"[^A-Z0-9]+")


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable probably holds a secret, so that it is inherited only if it is named exactly."""
    return any(
        (SECRET_NAME.search(name), ADDRESS.search(name), SECRET_VALUE.search(value)),
    )


def select_inherited(wanted: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of the worker that a command inherits: `PLAIN`, and names and patterns (with `*`) in
    `wanted`.
    """
    source = os.environ if environ is None else environ
    exact = {name for name in wanted if "*" not in name}
    patterns = [pattern for pattern in (*PLAIN, *wanted) if "*" in pattern]
    exact.update(name for name in PLAIN if "*" not in name)
    return {
        name: value
        for name, value in source.items()
        if name in exact or (any(fnmatchcase(name, pattern) for pattern in patterns) and not looks_secret(name, value))
    }


def find_passwords(text: str) -> list[str]:
    """Return the passwords of the URLs in a text, each as it is written and percent-decoded: a program that connects
    with the URL uses, and may print, the decoded form.
    """
    written = [url["password"] for url in SECRET_VALUE.finditer(text)]
    return [form for password in written for form in dict.fromkeys((password, unquote(password)))]


def find_secret_values(environ: Mapping[str, str] | None = None, texts: Iterable[str] = ()) -> list[str]:
    """Return what must be masked: the values of the worker's variables that look secret, and the passwords of URLs in
    its variables and in `texts`.
    """
    source = os.environ if environ is None else environ
    found = [password for text in texts for password in find_passwords(text)]
    for name, value in source.items():
        found += find_passwords(value)
        if SECRET_NAME.search(name) and len(value) >= SHORTEST_HIDDEN and not value.startswith("/"):
            found.append(value)
    return found


def variable_name(name: str) -> str:
    """Convert a name to a part of a variable's name: upper case, with one _ in place of each sequence of
    characters that are not letters or digits. "test (3.11)" becomes TEST_3_11.
    """
    return NAME.sub("_", name.upper()).strip("_")


class RunVariables:
    """Collects the variables of a run. If two inputs or outputs would become the same variable, `put` raises
    ConfigError, so that neither overwrites the other.
    """

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._whose: dict[str, str] = {}

    def put(self, name: str, value: str, whose: str) -> None:
        if name in self._whose and self._whose[name] != whose:
            raise ConfigError(f"{self._whose[name]} and {whose} would both be the variable {name}; rename one of them")
        if "\0" in value:
            raise ConfigError(f"{whose} contains a NUL character, which environment variables cannot hold")
        if len(value.encode(errors="surrogateescape")) > LARGEST_VARIABLE:
            raise ConfigError(f"{whose} has more than {LARGEST_VARIABLE} bytes, the limit of an environment variable")
        self._whose[name] = whose
        self.values[name] = value


def build_run_variables(
    inputs: Mapping[str, str], needs: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, str], bool]:
    """Build the variables INPUT_<NAME> and NEEDS_<JOB>_<KEY>. Returns them, and whether
    they are complete: the NEEDS_… variables are left out if they are too large.
    """
    given = RunVariables()
    for name, value in inputs.items():
        given.put(f"INPUT_{variable_name(name)}", value, f"input {name!r}")
    fixed = dict(given.values)
    size = 0
    for job, outputs in needs.items():
        for key, value in outputs.items():
            given.put(f"NEEDS_{variable_name(job)}_{variable_name(key)}", value, f"output {key!r} of {job!r}")
            size += len(job) + len(key) + len(value.encode(errors="surrogateescape")) + 8
            if size > LARGEST_NEEDS:
                return fixed, False
    return given.values, True


def encode_needs(needs: Mapping[str, Mapping[str, str]]) -> str:
    """Encode the outputs of the needed jobs as JSON: {job: {key: value}}."""
    return json.dumps(needs, ensure_ascii=False, indent=1)


def check_env(env: Mapping[str, str], where: str) -> None:
    """Raise ConfigError for variables that an environment cannot hold."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            raise ConfigError(f"{name!r} in the env of {where} is not a valid variable name")
        if "\0" in value:
            raise ConfigError(
                f"{name} in the env of {where} contains a NUL character, which environment variables cannot hold"
            )
        if len(value.encode(errors="surrogateescape")) > LARGEST_VARIABLE:
            raise ConfigError(f"{name} in the env of {where} has more than {LARGEST_VARIABLE} bytes")
