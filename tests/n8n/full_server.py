"""A full n8n server for tests: a process, an empty database, an owner, an API key. `scripts/n8n_server` installs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from lab.process import node_program

from backstay.testing.servers import ServerMissing
from backstay.testing.servers.ports import reserve_port

HOME = Path(__file__).resolve().parents[2] / ".n8n" / "server"
MAJORS = sorted(path.parent.name for path in Path(__file__).parent.glob("server/*/package-lock.json"))
#: Seconds. An empty database runs all migrations since the first version, on a busy machine.
START_WAIT = 600.0
OWNER = {"email": "owner@example.org", "firstName": "A", "lastName": "B", "password": "Only-4-tests"}


class FullServer:
    """An n8n of major version "1" or "2". With `queue` (the port of a Redis) it is in queue mode, with a worker."""

    def __init__(self, folder, major, queue=None):
        self.folder = Path(folder)
        self.major = major
        self.queue = queue
        self.port = reserve_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = ""
        self._cookie = ""
        self._process = None
        self._worker = None

    def start(self):
        self._launch()
        status, _, headers = self.call("POST", "/rest/owner/setup", OWNER)
        assert status == 200
        self._cookie = headers["Set-Cookie"].partition(";")[0]
        scopes = self.call("GET", "/rest/api-keys/scopes")[1]["data"]
        asked = {"label": "tests", "expiresAt": None, "scopes": scopes}
        self.key = self.call("POST", "/rest/api-keys", asked)[1]["data"]["rawApiKey"]
        return self

    def crash(self, *, lose_event_log=False):
        """Kill the server and its worker, and start them again. `lose_event_log` also deletes that, as when a
        container is replaced, so that n8n cannot recover the executions from it.
        """
        for process in self._running():
            process.kill()
            process.wait()
        for log in (self.folder / ".n8n").glob("n8nEventLog*") if lose_event_log else ():
            log.unlink()
        cookie, self._cookie = self._cookie, ""  # the readiness probe is anonymous
        self._launch()
        self._cookie = cookie

    def _launch(self):
        home = HOME / self.major
        # Each major version runs on the Node.js that it was installed with.
        node = node_program() if self.major == "2" else shutil.which("node")
        if node is None or not (home / ".locked").exists():
            raise ServerMissing(f"a whole n8n {self.major} server is not installed: run `make test-n8n-server`")
        environment = {
            "N8N_USER_FOLDER": str(self.folder),
            "N8N_LISTEN_ADDRESS": "127.0.0.1",
            "N8N_PORT": str(self.port),
            "N8N_RUNNERS_BROKER_PORT": str(reserve_port()),
            "N8N_DISABLE_UI": "true",
            "N8N_DIAGNOSTICS_ENABLED": "false",
            "N8N_VERSION_NOTIFICATIONS_ENABLED": "false",
            "N8N_SECURE_COOKIE": "false",
            "N8N_EXPRESSION_ENGINE": "legacy",
            "DB_TYPE": "sqlite",
        }
        if self.queue is not None:
            environment |= {
                "EXECUTIONS_MODE": "queue",
                "QUEUE_BULL_REDIS_HOST": "127.0.0.1",
                "QUEUE_BULL_REDIS_PORT": str(self.queue),
                "QUEUE_BULL_PREFIX": f"n8n-{self.port}",
                "DB_SQLITE_POOL_SIZE": "2",  # lets two processes use one file
            }

        def launch(command, is_up, **more):
            log = self.folder / f"log-{command}"
            with log.open("wb") as out:
                process = subprocess.Popen(
                    [node, str(home / "node_modules/n8n/bin/n8n"), command],
                    env={**os.environ, **environment, **more},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            until = time.monotonic() + START_WAIT
            while not is_up():
                assert process.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < until, log.read_text()[-2000:]
                time.sleep(0.5)
            return process

        self._process = launch("start", lambda: self.call("GET", "/rest/login")[0] == 401)
        if self.queue is not None:
            port, broker = reserve_port(), reserve_port()
            health = {"QUEUE_HEALTH_CHECK_ACTIVE": "true", "QUEUE_HEALTH_CHECK_PORT": str(port)}
            ready = f"http://127.0.0.1:{port}/healthz/readiness"
            self._worker = launch(
                "worker",
                lambda: self.call("GET", "", url=ready)[0] == 200,
                **health,
                N8N_RUNNERS_BROKER_PORT=str(broker),
            )

    def call(self, method, path, body=None, timeout=60, url=""):
        """Send a request as the editor does and return status, JSON and headers; status 0 means no connection."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "browser-id": "tests", "cookie": self._cookie}
        where = url or self.url + path
        request = urllib.request.Request(where, data=data, method=method, headers=headers)  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310 - loopback
                return response.status, _json(response.read()), response.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _json(error.read()), error.headers
        except OSError:
            return 0, None, {}

    def _running(self):
        return [process for process in (self._worker, self._process) if process is not None]

    def stop(self):
        for process in self._running():
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _json(raw):
    try:
        return json.loads(raw)
    except ValueError:
        return None
