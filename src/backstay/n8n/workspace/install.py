"""Install the primitives into a workspace and add the settings that they need."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from backstay.errors import BadWorkflow, PatchRefused, WorkspaceError
from backstay.n8n.json_types import is_mapping
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.patch import read_limit_options, read_lock_options
from backstay.n8n.primitives import KEYS, VERSION, PrimitiveIdentity, Transport, identify, primitive
from backstay.n8n.workspace import environments as envs
from backstay.n8n.workspace.hydrate import find_placeholders
from backstay.n8n.workspace.workspace import Workspace

LOCK_PAIR = ("lock_acquisition", "lock_release")
ERROR_HANDLER = "error_handler_lock_cleanup"
RATE_LIMIT = "rate_limit_check"

#: The default address of `backstay serve`.
BACKSTAY_URL = "http://127.0.0.1:3000"
#: Default display names of the primitives' credentials.
CREDENTIAL_NAMES = {"redis": "Redis", "backstay": "Backstay"}

_CREDENTIAL = re.compile(r"credentials\.([A-Za-z0-9_-]+)\.(?:id|name)")


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an installation: written files, existing files that were kept, and warnings."""

    transport: Transport
    written: tuple[str, ...]
    kept: tuple[str, ...]
    warnings: tuple[str, ...]


def transports(workspace: Workspace, keys: Iterable[str] = KEYS) -> dict[str, Transport]:
    """Return the transport (redis or http) of each installed primitive, by the primitive's key, such as
    `lock_acquisition`. A file that has a primitive's name but contains another workflow is skipped.
    """
    found: dict[str, Transport] = {}
    for key in keys:
        identity = _identify(workspace, key)
        if identity is not None:
            found[key] = identity.transport
    return found


def _identify(workspace: Workspace, key: str) -> PrimitiveIdentity | None:
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
    """Install the primitives lock_acquisition and lock_release and, when requested, those for error handling and rate
    limits. Register them in each environment. Call it inside `workspace.edit()`.
    """
    keys = (*LOCK_PAIR, *([ERROR_HANDLER] if error_handler else []), *([RATE_LIMIT] if rate_limit else []))
    there = transports(workspace)
    chosen = choose_transport(there, transport)
    _refuse_mixed_transports(workspace, there, keys, chosen, force=force)
    done = copy_primitives(workspace, keys, chosen, force=force)
    for key in keys:
        workflow = workspace.read(key)
        for env in environments:
            workspace.register(env, key, name=workflow.name or key)
            _add_missing_settings(workspace, env, workflow)
    for key in reversed(keys):
        workspace.add_to_order(key, first=True)
    return done


def choose_transport(there: dict[str, Transport], wanted: Transport | None) -> Transport:
    """Return the requested transport, else the installed one, else redis, which needs no server."""
    installed = list(there.values())
    return wanted or (installed[0] if installed else "redis")


def copy_primitives(workspace: Workspace, keys: Iterable[str], transport: Transport, *, force: bool) -> Installed:
    """Copy the primitives as templates. Existing files are kept, unless `force` is set. Call it inside
    `workspace.edit()`.
    """
    written: list[str] = []
    kept: list[str] = []
    warnings: list[str] = []
    for key in keys:
        template = primitive(key, transport)
        if not workspace.has(key) or force:
            workspace.write(key, template)
            written.append(key)
            continue
        kept.append(key)
        warnings += _keep_warnings(workspace, key, transport)
    return Installed(transport, tuple(written), tuple(kept), tuple(warnings))


def _keep_warnings(workspace: Workspace, key: str, transport: Transport) -> list[str]:
    """Return the warnings for an existing file that was not replaced: another workflow, transport or version."""
    path = workspace.template_path(key)
    identity = _identify(workspace, key)
    if identity is None:
        return [f"{path} is not one of Backstay's primitives and was kept; --force-overwrite replaces it"]
    if identity.transport != transport:
        return [f"{path} uses {identity.transport}, not {transport}, and was kept; --force-overwrite replaces it"]
    if identity.version < VERSION:
        older = f"{path} is version {identity.version} of the primitive and was kept"
        return [f"{older}; this Backstay has version {VERSION}: --force-overwrite replaces it"]
    return []


def _refuse_mixed_transports(
    workspace: Workspace, there: dict[str, Transport], keys: tuple[str, ...], chosen: Transport, *, force: bool
) -> None:
    """Raise WorkspaceError when the workspace already uses another transport. Locks of one transport do not exclude
    those of the other.
    """
    other = {key: one for key, one in there.items() if one != chosen and not (force and key in keys)}
    if other:
        names = ", ".join(sorted(other))
        (theirs,) = set(other.values())
        raise WorkspaceError(
            f"{names}: installed for {theirs}, but {theirs} and {chosen} do not share locks. Install all"
            f" with --transport {chosen} --force-overwrite (and --include-… for each that is there)"
        )
    patched = [key for key in workspace.keys if transport_of(workspace, key) not in (None, chosen)]
    if patched:
        raise WorkspaceError(
            f"{', '.join(patched)}: uses a lock or limit over another transport than {chosen}; remove it first, and"
            " add it again afterwards"
        )


def transport_of(workspace: Workspace, key: str) -> Transport | None:
    """Return the transport (redis or http) of the lock or limit that was added to the workflow `key`. None when the
    workflow has neither or cannot be read.
    """
    try:
        workflow = workspace.read(key)
        found = read_lock_options(workflow) or read_limit_options(workflow)
    except ValueError:  # not a valid workflow: `validate` reports it
        return None
    except PatchRefused as error:
        raise PatchRefused(f"{key}: {error}") from error
    return found.transport if found else None


def _add_missing_settings(workspace: Workspace, env: str, workflow: N8nWorkflow) -> None:
    """Add the settings that a primitive reads and the environment lacks."""
    types = _credential_types(workflow)
    for kind, path in sorted(find_placeholders(workflow.data)):
        found = _CREDENTIAL.fullmatch(path) if kind == "env" else None
        if found and not workspace.entry(env, found[1], "credentials").get("id"):
            name = CREDENTIAL_NAMES.get(found[1], found[1])
            entry = {"id": envs.local_id(), "name": name, "type": types.get(found[1], found[1])}
            workspace.set(env, ("credentials", found[1]), {**workspace.entry(env, found[1], "credentials"), **entry})
        elif (kind, path) == ("env", "backstay.url") and not workspace.entry(env, "url", "backstay"):
            settings = workspace.env(env).get("backstay")
            if not is_mapping(settings) or not settings.get("url"):
                workspace.set(env, ("backstay", "url"), BACKSTAY_URL)


def _credential_types(workflow: N8nWorkflow) -> dict[str, str]:
    """Return n8n's credential type for each credential name that the workflow uses."""
    found: dict[str, str] = {}
    for node in workflow.nodes:
        used = node.data.get("credentials")
        for kind, reference in used.items() if is_mapping(used) else ():
            for _, path in find_placeholders(reference):
                if named := _CREDENTIAL.fullmatch(path):
                    found[named[1]] = kind
    return found
