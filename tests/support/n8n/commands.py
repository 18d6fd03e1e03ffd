"""`backstay n8n` in a workspace of a test's own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typer.main import get_command
from typer.testing import CliRunner

from backstay.cli.root import app
from backstay.n8n.workspace.files import PRIVATE

COMMAND = get_command(app)
FLOW = """\
{
  "name": "Nightly",
  "nodes": [
    {
      "id": "1",
      "name": "Start",
      "type": "n8n-nodes-base.manualTrigger",
      "typeVersion": 1,
      "position": [0, 0],
      "parameters": {}
    },
    {
      "id": "2",
      "name": "Work",
      "type": "n8n-nodes-base.set",
      "typeVersion": 3.4,
      "position": [220, 0],
      "parameters": {
        "assignments": {"assignments": [{"id": "a", "name": "done", "type": "string", "value": "={{ $json.n }}"}]},
        "includeOtherFields": true,
        "options": {}
      }
    }
  ],
  "connections": {"Start": {"main": [[{"node": "Work", "type": "main", "index": 0}]]}},
  "settings": {"executionOrder": "v1", "executionTimeout": 172800}
}
"""


@dataclass
class Commands:
    """A workspace, and commands typed in it."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    def call(self, *arguments: str, **options: Any) -> Any:
        environment = {"BACKSTAY_N8N_WORKSPACE": str(self.root), "COLUMNS": "200", **self.variables}
        # Made once: for each call of all these commands it would be half of what the call costs.
        with patch("typer.testing._get_command", return_value=COMMAND):
            return CliRunner().invoke(app, ("n8n", *arguments), env=environment, prog_name="backstay", **options)

    def do(self, *arguments: str) -> str:
        """Run a command that must succeed; return its output."""
        done = self.call(*arguments)
        assert done.exit_code == 0, done.output
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.do(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 1) -> str:
        """What must not work, without a trace; answers the one line."""
        before = self.snapshot()
        done = self.call(*arguments)
        assert done.exit_code == code, done.output
        assert isinstance(done.exception, SystemExit)  # what else it were would be a traceback
        assert self.snapshot() == before
        assert done.stderr
        return done.stderr

    def snapshot(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and PRIVATE not in path.parts
        }

    def path(self, key: str) -> Path:
        return self.root / f"n8n-workflows-template/{key}.template.json"

    def put(self, key: str, text: str | dict[str, Any] = FLOW) -> None:
        self.path(key).write_text(text if isinstance(text, str) else json.dumps(text))

    def settings(self, env: str = "dev") -> str:
        return (self.root / f"n8n-config/{env}.yml").read_text()

    def built(self, key: str, env: str = "dev") -> dict[str, Any]:
        return json.loads((self.root / f"n8n-build/{env}/{key}.json").read_text())
