"""Run `backstay n8n` commands in a workspace that only one test uses."""

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
#: The options of a limit of three executions per minute.
LIMIT_OPTIONS = ("--limit", "3", "--window-seconds", "60", "--scope-expression", "api")


@dataclass
class Commands:
    """A workspace, and the commands that run in it. `variables`: environment variables of the commands."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    def call(self, *arguments: str, **options: Any) -> Any:
        environment = {"BACKSTAY_N8N_WORKSPACE": str(self.root), "COLUMNS": "200", **self.variables}
        # The command tree is built once: building it for every call would take half of the time of the call.
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
        """Run a command that must fail with this exit code and change no file; return its error output."""
        before = self.snapshot()
        done = self.call(*arguments)
        assert done.exit_code == code, done.output
        assert isinstance(done.exception, SystemExit)  # any other exception would print a traceback
        assert self.snapshot() == before
        assert done.stderr
        return done.stderr

    def add_lock(self, *options: str, scope: str = "={{ 'nightly' }}", key: str = "nightly") -> Any:
        return self.json("add-lock-to-workflow", "--workflow-key", key, "--scope-expression", scope, *options)

    def snapshot(self) -> dict[str, bytes]:
        """Return the contents of all files except private ones."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and PRIVATE not in path.parts
        }

    def path(self, key: str) -> Path:
        return self.root / f"n8n-workflows-template/{key}.template.json"

    def put(self, key: str, text: str | dict[str, Any] = FLOW) -> None:
        self.path(key).write_text(text if isinstance(text, str) else json.dumps(text))

    def put_with_error_trigger(self, key: str) -> None:
        """Put a workflow with its own Error Trigger, which n8n starts as long as no error workflow is set."""
        flow = json.loads(FLOW)
        trigger = {"parameters": {}, "id": "own", "type": "n8n-nodes-base.errorTrigger", "typeVersion": 1}
        flow["nodes"].append({**trigger, "name": "When It Fails", "position": [0, 600]})
        target = flow["nodes"][1]["name"]
        flow["connections"]["When It Fails"] = {"main": [[{"node": target, "type": "main", "index": 0}]]}
        self.put(key, flow)

    def settings(self, env: str = "dev") -> str:
        return (self.root / f"n8n-config/{env}.yml").read_text()

    def built(self, key: str, env: str = "dev") -> dict[str, Any]:
        return json.loads((self.root / f"n8n-build/{env}/{key}.json").read_text())
