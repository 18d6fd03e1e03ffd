"""Puts the primitives into a workspace, and says in its settings what they need."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from backstay.errors import BadWorkflow, PatchRefused, WorkspaceError
from backstay.n8n.json_types import is_table
from backstay.n8n.model import Workflow
from backstay.n8n.patch.patch import limits_of, locks_of
from backstay.n8n.primitives import KEYS, VERSION, Identity, Transport, identify, primitive
from backstay.n8n.workspace import environments as envs
from backstay.n8n.workspace.hydrate import placeholders
from backstay.n8n.workspace.workspace import Workspace

PAIR = ("lock_acquisition", "lock_release")
ERROR_HANDLER = "error_handler_lock_cleanup"
RATE_LIMIT = "rate_limit_check"

#: Where `backstay serve` listens unless it is told otherwise.
BACKSTAY_URL = "http://127.0.0.1:3000"
#: How credentials that the primitives use are called in n8n, until somebody calls them otherwise.
CREDENTIAL_NAMES = {"redis": "Redis", "backstay": "Backstay"}

_CREDENTIAL = re.compile(r"credentials\.([A-Za-z0-9_-]+)\.(?:id|name)")


@dataclass(frozen=True, slots=True)
class Installed:
    """What was written, what was there and stays, and what somebody should know."""

    transport: Transport
    written: tuple[str, ...]
    kept: tuple[str, ...]
    warnings: tuple[str, ...]


def transports(workspace: Workspace, keys: Iterable[str] = KEYS) -> dict[str, Transport]:
    """The primitives that are installed, and what each of them speaks. A file that is none of ours is left out."""
    found: dict[str, Transport] = {}
    for key in keys:
        identity = _identity(workspace, key)
        if identity is not None:
            found[key] = identity.transport
    return found


def _identity(workspace: Workspace, key: str) -> Identity | None:
    try:
        found = identify(workspace.read(key)) if workspace.has(key) else None
    except BadWorkflow:
        return None
    return found if found is not None and found.key == key else None


def create_lock(
    workspace: Workspace,
    *,
    environments: tuple[str, ...],
    transport: Transport | None = None,
    error_handler: bool = False,
    rate_limit: bool = False,
    force: bool = False,
) -> Installed:
    """The pair, and the others when asked; registered in each environment. Inside edit()."""
    keys = (*PAIR, *([ERROR_HANDLER] if error_handler else []), *([RATE_LIMIT] if rate_limit else []))
    there = transports(workspace)
    chosen = spoken(there, transport)
    _refuse_mix(workspace, there, keys, chosen, force=force)
    done = copy(workspace, keys, chosen, force=force)
    for key in keys:
        workflow = workspace.read(key)
        for env in environments:
            workspace.register(env, key, name=workflow.name or key)
            _provide(workspace, env, workflow)
    for key in reversed(keys):
        workspace.put_in_order(key, first=True)
    return done


def spoken(there: dict[str, Transport], wanted: Transport | None) -> Transport:
    """What is asked for, else what is installed, else redis, which needs nothing."""
    installed = list(there.values())
    return wanted or (installed[0] if installed else "redis")


def copy(workspace: Workspace, keys: Iterable[str], transport: Transport, *, force: bool) -> Installed:
    """The files alone. One that is there stays unless forced; inside edit()."""
    written: list[str] = []
    kept: list[str] = []
    warnings: list[str] = []
    for key in keys:
        fresh = primitive(key, transport)
        if not workspace.has(key) or force:
            workspace.write(key, fresh)
            written.append(key)
            continue
        kept.append(key)
        warnings += _about(workspace, key, transport)
    return Installed(transport, tuple(written), tuple(kept), tuple(warnings))


def _about(workspace: Workspace, key: str, transport: Transport) -> list[str]:
    """What to say of a file that stays."""
    path = workspace.template_path(key)
    identity = _identity(workspace, key)
    if identity is None:
        return [f"{path} is none of Backstay's primitives and is kept; --force-overwrite replaces it"]
    if identity.transport != transport:
        return [f"{path} speaks {identity.transport}, not {transport}, and is kept; --force-overwrite replaces it"]
    if identity.version < VERSION:
        older = f"{path} is version {identity.version} of the primitive and is kept"
        return [f"{older}; this Backstay has version {VERSION}: --force-overwrite replaces it"]
    return []


def _refuse_mix(
    workspace: Workspace, there: dict[str, Transport], keys: tuple[str, ...], chosen: Transport, *, force: bool
) -> None:
    """Locks of one transport are not seen by the other, so a workspace speaks one."""
    other = {key: one for key, one in there.items() if one != chosen and not (force and key in keys)}
    if other:
        names = ", ".join(sorted(other))
        (theirs,) = set(other.values())
        raise WorkspaceError(
            f"{names}: installed for {theirs}, and {theirs} and {chosen} do not see each other's locks. Install all"
            f" with --transport {chosen} --force-overwrite (and --include-… for each that is there)"
        )
    woven = [key for key in workspace.keys if spoken_by(workspace, key) not in (None, chosen)]
    if woven:
        raise WorkspaceError(
            f"{', '.join(woven)}: woven for another transport than {chosen}; remove lock and limit there first, and"
            " add them again afterwards"
        )


def spoken_by(workspace: Workspace, key: str) -> Transport | None:
    """The transport of a workflow's lock or limit; None when it has neither, or is no workflow."""
    try:
        workflow = workspace.read(key)
        found = locks_of(workflow) or limits_of(workflow)
    except ValueError:  # no workflow, or half a template: `validate` says so
        return None
    except PatchRefused as error:
        raise PatchRefused(f"{key}: {error}") from error
    return found.transport if found else None


def _provide(workspace: Workspace, env: str, workflow: Workflow) -> None:
    """Settings that a primitive reads and that are not there yet."""
    types = _credential_types(workflow)
    for kind, path in sorted(placeholders(workflow.data)):
        found = _CREDENTIAL.fullmatch(path) if kind == "env" else None
        if found and not workspace.entry(env, found[1], "credentials").get("id"):
            name = CREDENTIAL_NAMES.get(found[1], found[1])
            entry = {"id": envs.local_id(), "name": name, "type": types.get(found[1], found[1])}
            workspace.set(env, ("credentials", found[1]), {**workspace.entry(env, found[1], "credentials"), **entry})
        elif (kind, path) == ("env", "backstay.url") and not workspace.entry(env, "url", "backstay"):
            settings = workspace.env(env).get("backstay")
            if not is_table(settings) or not settings.get("url"):
                workspace.set(env, ("backstay", "url"), BACKSTAY_URL)


def _credential_types(workflow: Workflow) -> dict[str, str]:
    """What n8n calls the types of credentials, by the names that the templates use for them."""
    found: dict[str, str] = {}
    for node in workflow.nodes:
        used = node.data.get("credentials")
        for kind, reference in used.items() if is_table(used) else ():
            for _, path in placeholders(reference):
                if named := _CREDENTIAL.fullmatch(path):
                    found[named[1]] = kind
    return found
