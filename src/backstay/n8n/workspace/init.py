"""A new workspace, or what an old one lacks."""

from __future__ import annotations

from pathlib import Path

from backstay.errors import WorkspaceError
from backstay.n8n.workspace import environments as envs
from backstay.n8n.workspace.environments import CONFIG
from backstay.n8n.workspace.workspace import BUILD, TEMPLATES, Workspace

#: Where n8n listens unless it is told otherwise.
N8N_URL = "http://127.0.0.1:5678"

COMMON = """\
# What all environments share. An environment's own file wins; tables are merged by key.
"""
ORDER = """\
# What is pushed first: workflows that others call come before them.
order: []
"""
ENVIRONMENT = """\
# The n8n of this environment. Its API key is read from the variable N8N_API_KEY, never from here.
n8n:
  url: {url}

# Workflows and their ids in this n8n. Ids that begin with local- were made up here: push puts n8n's own in their place.
workflows: {{}}

# Credentials by the names that templates use: id, name and type, no secrets.
credentials: {{}}

# Lock scopes that are known by name: after a failed execution, clean-up looks for its locks in these.
lockScopes: []
"""
#: Folders that git would not keep, because they begin empty.
KEEP = ".gitkeep"
IGNORED = """\
# Built from the templates; may hold what only one environment should know.
*
!*/
!.gitignore
!.gitkeep
"""


def check_place(root: Path) -> None:
    """Raises WorkspaceError where no workspace can be."""
    for place in (root, root / CONFIG, root / TEMPLATES, root / BUILD):
        if place.exists() and not place.is_dir():
            raise WorkspaceError(f"{place} is in the way: a workspace has a folder there")


def lay_out(workspace: Workspace, environments: list[str], url: str = N8N_URL) -> None:
    """Inside edit(). Files that are there stay as they are."""
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
