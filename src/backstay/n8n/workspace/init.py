"""Create a workspace, or add the missing files of an existing one."""

from __future__ import annotations

from pathlib import Path

from backstay.errors import WorkspaceError
from backstay.n8n.workspace import environments as envs
from backstay.n8n.workspace.environments import CONFIG
from backstay.n8n.workspace.workspace import BUILD, TEMPLATES, Workspace

#: n8n's default address.
N8N_URL = "http://127.0.0.1:5678"

COMMON = """\
# Settings that all environments share. An environment's own file overrides them; mappings are merged by key.
"""
ORDER = """\
# The push order: a workflow that others call comes before its callers.
order: []
"""
ENVIRONMENT = """\
# The n8n server of this environment. Its API key is read from the variable N8N_API_KEY, never from this file.
n8n:
  url: {url}

# Workflows and their ids in this n8n. Ids that start with local- are generated; push replaces them with n8n's own.
workflows: {{}}

# Credentials by the names that templates use: id, name and type, never secrets.
credentials: {{}}

# Registered lock scopes: after a failed execution, clean-up checks these for its locks.
lockScopes: []
"""
#: Keeps empty folders in git.
KEEP = ".gitkeep"
IGNORED = """\
# Built from the templates; may contain values that belong to one environment only.
*
!*/
!.gitignore
!.gitkeep
"""


#: Lines of the workspace's .gitignore.
SECRETS_IGNORED = (".env", ".env.*", "!.env.example")


def check_location(root: Path) -> None:
    """Raise WorkspaceError when a file exists where the workspace needs a folder."""
    for place in (root, root / CONFIG, root / TEMPLATES, root / BUILD):
        if place.exists() and not place.is_dir():
            raise WorkspaceError(f"{place} is a file, but a workspace needs a folder there")


def create_missing_files(workspace: Workspace, environments: list[str], url: str = N8N_URL) -> None:
    """Create the files that a workspace with these environments needs. Existing files are not changed. Call it inside
    `workspace.edit()`.
    """
    texts = {
        envs.path_of(envs.COMMON): COMMON,
        envs.path_of(envs.ORDER): ORDER,
        **{envs.path_of(envs.check_environment(name)): ENVIRONMENT.format(url=url) for name in environments},
        f"{TEMPLATES}/{KEEP}": "",
        f"{BUILD}/.gitignore": IGNORED,
        **{f"{BUILD}/{name}/{KEEP}": "" for name in environments},
    }
    for path, text in texts.items():
        if not workspace.files.exists(path):
            workspace.files.write(path, text.encode())
    _ignore_secrets(workspace)


def _ignore_secrets(workspace: Workspace) -> None:
    """Have git ignore .env files. If there is a .gitignore already, its lines stay and the missing ones are added."""
    known = workspace.files.read(".gitignore") or b""
    missing = [line for line in SECRETS_IGNORED if line.encode() not in known.splitlines()]
    if missing:
        gap = b"\n" if known and not known.endswith(b"\n") else b""
        added = "".join(f"{line}\n" for line in ("# Files with API keys and passwords.", *missing))
        workspace.files.write(".gitignore", known + gap + added.encode())
