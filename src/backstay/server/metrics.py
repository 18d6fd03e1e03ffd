"""Prometheus metrics of a server: requests and latencies, queues, workers, and Backstay's own event counters."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from backstay.job.model import Queue, WorkerRecord
from backstay.runtime.core import Core

if TYPE_CHECKING:
    from backstay.server.http.route import Route

#: Upper bounds of the latency histogram, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
STATES = ("scheduled", "blocked", "pending", "running", "completed", "failed", "cancelled", "skipped")


class Metrics:
    """Counts requests in memory, and renders all metrics in the Prometheus text format."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        #: The number of responses with status 500: unexpected exceptions.
        self.bugs = 0

    def record_request(self, route: Route | None, status: int, seconds: float) -> None:
        path, method = (route.path, route.method) if route is not None else ("", "")
        self._requests[method, path, status] += 1
        if route is None or route.produces == "text/event-stream":
            return  # the duration of a stream is not a latency
        buckets = self._buckets.get(path)
        if buckets is None:
            buckets = self._buckets[path] = [0] * (len(BUCKETS) + 1)
        buckets[bisect_left(BUCKETS, seconds)] += 1
        self._seconds[path] += seconds  # type: ignore[assignment] # pyright: ignore[reportArgumentType] - a Counter accepts floats

    def render(self, queues: Iterable[Queue], workers: Iterable[tuple[WorkerRecord, str]], waiting: int) -> str:
        """Render all metrics as text in the format of Prometheus.

        queues: all queues with their job counts.
        workers: pairs of a worker's record and its status.
        waiting: the number of open streams and long polls.
        """
        page = _Exposition()
        page.head("backstay_http_requests_total", "counter", "Requests answered.")
        for (method, path, status), count in sorted(self._requests.items()):
            page.line("backstay_http_requests_total", count, method=method, route=path, status=str(status))
        name = "backstay_http_request_seconds"
        page.head(name, "histogram", "Request latency, without streams.")
        for path, buckets in sorted(self._buckets.items()):
            total = 0
            for most, count in zip((*map(str, BUCKETS), "+Inf"), buckets, strict=True):
                total += count
                page.line(f"{name}_bucket", total, route=path, le=most)
            page.line(f"{name}_sum", round(self._seconds[path], 6), route=path)
            page.line(f"{name}_count", total, route=path)
        page.head("backstay_http_waiting", "gauge", "Streams and long polls open now.")
        page.line("backstay_http_waiting", waiting)
        page.head("backstay_jobs", "gauge", "Jobs by queue and state.")
        oldest: list[tuple[str, float]] = []
        paused: list[tuple[str, int]] = []
        now = self._core.engine.now()
        for queue in queues:
            for state in STATES:
                page.line("backstay_jobs", getattr(queue, state), queue=queue.name, state=state)
            oldest.append((queue.name, max(0, now - queue.oldest_due) / 1_000_000 if queue.oldest_due else 0.0))
            paused.append((queue.name, int(queue.paused)))
        page.head("backstay_queue_waiting_seconds", "gauge", "How long the oldest pending job has been due.")
        for queue_name, seconds in oldest:
            page.line("backstay_queue_waiting_seconds", round(seconds, 3), queue=queue_name)
        page.head("backstay_queue_paused", "gauge", "1 while a queue is paused.")
        for queue_name, is_paused in paused:
            page.line("backstay_queue_paused", is_paused, queue=queue_name)
        page.head("backstay_workers", "gauge", "Workers by status.")
        by_status = Counter(status for _, status in workers)
        for kind in ("idle", "busy", "offline"):
            page.line("backstay_workers", by_status[kind], status=kind)
        page.head("backstay_events_total", "counter", "Telemetry events of this process, by kind.")
        for kind, count in sorted(self._core.telemetry.counts.items()):
            page.line("backstay_events_total", count, kind=kind)
        page.head("backstay_http_bugs_total", "counter", "Responses with status 500; the log has their tracebacks.")
        page.line("backstay_http_bugs_total", self.bugs)
        return page.text()


class _Exposition:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def head(self, name: str, kind: str, help_text: str) -> None:
        self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]

    def line(self, name: str, value: float, **labels: str) -> None:
        inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        self._lines.append(f"{name}{{{inside}}} {value}" if inside else f"{name} {value}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
