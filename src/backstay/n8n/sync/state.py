"""What was last the same here and in n8n: one small file for each environment, so that nobody's edit is overwritten.

Pure: text in, text out. The workspace reads and writes the file (`n8n-build/<env>/.backstay-sync.json`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from backstay.errors import WorkspaceError

FILE = ".backstay-sync.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Known:
    """One workflow at its last push or pull: n8n's id, and the fingerprints of both sides."""

    id: str
    local: str
    remote: str


@dataclass(slots=True)
class State:
    """By the workflows' keys. Changed in place by push and pull: write it down also when they fail on the way."""

    workflows: dict[str, Known] = field(default_factory=dict[str, Known])
    #: The n8n that this is about. Another one's ids mean nothing.
    url: str = ""
    #: Workflows that were about to be made there, and the mark that each of them carries.
    begun: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def parse(cls, text: str, source: str = FILE) -> State:
        """Raises WorkspaceError. Empty text: nothing is known yet."""
        if not text.strip():
            return cls()
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise WorkspaceError(f"{source} is of version {data['version']}, this Backstay reads {VERSION}")
            found = {
                str(key): Known(str(item["id"]), str(item["local"]), str(item["remote"]))
                for key, item in data["workflows"].items()
            }
            begun = {str(key): str(mark) for key, mark in data.get("begun", {}).items()}
            return cls(found, str(data.get("url", "")), begun)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise WorkspaceError(
                f"{source} cannot be read: remove it, and compare with n8n (backstay n8n diff) before the next push"
            ) from None

    def text(self) -> str:
        workflows = {
            key: {"id": known.id, "local": known.local, "remote": known.remote}
            for key, known in sorted(self.workflows.items())
        }
        begun = {"begun": dict(sorted(self.begun.items()))} if self.begun else {}
        return json.dumps({"version": VERSION, "url": self.url, "workflows": workflows, **begun}, indent=2) + "\n"
