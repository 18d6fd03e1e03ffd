"""The sync state of one environment: ids and fingerprints of the last push or pull, to detect edits on both sides.

This module only parses and formats it; the workspace reads and writes the file
(`n8n-build/<env>/.backstay-sync.json`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from backstay.errors import WorkspaceError

FILE = ".backstay-sync.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class LastSync:
    """One workflow at its last push or pull: its id in n8n, and hashes of the content of our file (`local`) and of
    n8n's workflow (`remote`).
    """

    id: str
    local: str
    remote: str


@dataclass(slots=True)
class SyncState:
    """The last push or pull of each workflow, by key. Push and pull change this object in place. The caller must
    persist it even if they fail halfway, because they may already have changed n8n.
    """

    workflows: dict[str, LastSync] = field(default_factory=dict[str, LastSync])
    #: The n8n server that the ids belong to.
    url: str = ""
    #: Workflows whose creation in n8n has started but is not confirmed: key → the unique mark in the new workflow.
    begun: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def parse(cls, text: str, source: str = FILE) -> SyncState:
        """Parse the file's text; empty text is an empty state. Raise WorkspaceError for any other format."""
        if not text.strip():
            return cls()
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise WorkspaceError(
                    f"{source} has version {data['version']}, but this Backstay reads version {VERSION}"
                )
            found = {
                str(key): LastSync(str(item["id"]), str(item["local"]), str(item["remote"]))
                for key, item in data["workflows"].items()
            }
            begun = {str(key): str(mark) for key, mark in data.get("begun", {}).items()}
            return cls(found, str(data.get("url", "")), begun)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise WorkspaceError(
                f"{source} cannot be read: delete it, and compare with n8n (backstay n8n diff) before the next push"
            ) from None

    def text(self) -> str:
        workflows = {
            key: {"id": known.id, "local": known.local, "remote": known.remote}
            for key, known in sorted(self.workflows.items())
        }
        begun = {"begun": dict(sorted(self.begun.items()))} if self.begun else {}
        return json.dumps({"version": VERSION, "url": self.url, "workflows": workflows, **begun}, indent=2) + "\n"
