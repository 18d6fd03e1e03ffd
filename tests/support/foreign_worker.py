"""A worker as a foreign client would write it from the protocol alone: it registers, polls for a job, runs its command
in a shell, and meanwhile renews the lease, sends the output and asks whether the job was cancelled. It decodes each
response with strict types, and uses no field beyond those.
"""

from __future__ import annotations

import subprocess
import threading
import time

import httpx

from support import foreign_types as types

SET_OUTPUT = "::set-output "


class ForeignWorker:
    """Runs jobs in a thread, until `stop()`. An error of the worker itself is in `errors`."""

    def __init__(self, url, labels=(), *, beat=0.2, poll=0.05):
        self.id = f"foreign-{id(self):x}"
        self._labels = list(labels)
        self._beat, self._poll = beat, poll
        self._http = httpx.Client(base_url=url, timeout=30)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.claims = []
        self.cancelled = []
        self.errors = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._thread.join(30)
        self._http.close()
        assert not self._thread.is_alive()

    def _run(self):
        try:
            registered = self._http.post("/api/workers/register", json={"worker_id": self.id, "labels": self._labels})
            assert registered.status_code == 200, registered.text
            while not self._stopping.is_set():
                if not self._poll_once():
                    self._stopping.wait(self._poll)
        except BaseException as error:  # noqa: BLE001 - raised in the test
            self.errors.append(error)

    def _poll_once(self):
        body = {"worker_id": self.id, "labels": self._labels, "lease_ttl_secs": 30}
        found = types.decode(types.CLAIM, self._http.post("/api/jobs/claim", json=body).text)
        if found is None:
            return False
        self.claims.append(found)
        self._run_job(found["job"], found["lease"]["lease_id"])
        return True

    def _run_job(self, job, lease):
        process = subprocess.Popen(
            ["sh", "-c", job["command"]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        ended, cancelled = threading.Event(), threading.Event()
        watching = threading.Thread(target=self._watch, args=(job, lease, process, ended, cancelled))
        watching.start()
        outputs = {}
        with process:
            for number, line in enumerate(process.stdout):
                self._send_log(job, lease, number, line)
                if line.startswith(SET_OUTPUT):
                    key, _, value = line.removeprefix(SET_OUTPUT).strip().partition("=")
                    outputs[key] = value
        ended.set()
        watching.join(30)
        if process.returncode == 0 and not cancelled.is_set():
            answer = self._http.post(f"/api/jobs/{lease}/complete", json={"outputs": outputs})
        else:
            why = "cancelled" if cancelled.is_set() else f"exit code {process.returncode}"
            answer = self._http.post(f"/api/jobs/{lease}/fail", json={"error": why, "retryable": True})
        assert answer.status_code == 200, answer.text

    def _watch(self, job, lease, process, ended, cancelled):
        """Renew the lease and ask for a cancellation, until the command ends."""
        while not ended.wait(self._beat):
            beat = self._http.post(f"/api/jobs/{lease}/heartbeat")  # without a body
            asked = self._http.get(f"/api/jobs/{job['workflow_id']}/{job['job_id']}/cancelled")
            if beat.status_code == 409 or types.decode(types.boolean, asked.text):
                self.cancelled.append(job["job_id"])
                cancelled.set()
                process.kill()
                return

    def _send_log(self, job, lease, number, line):
        chunk = {
            "workflow_id": job["workflow_id"],
            "job_id": job["job_id"],
            "sequence": number,
            "data": line,
            "timestamp_ms": int(time.time() * 1000),
            "stream": "stdout",
        }
        self._http.post(f"/api/jobs/{lease}/logs", json={"chunks": [chunk]}).raise_for_status()
