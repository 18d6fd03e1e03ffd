// The client's state of a run: the server's last snapshot plus the events since. Pure: no clock, no network.

import type { EventKind, FlowJob, JobStatus, RunDetail, RunEvent, RunStatus } from "./api.ts";

const STATUS_AFTER: Partial<Record<EventKind, JobStatus>> = {
  ready: "queued",
  scheduled: "queued",
  lease_expired: "queued",
  started: "running",
  completed: "success",
  failed: "failure",
  cancelled: "cancelled",
  skipped: "skipped",
};
const STATUSES: readonly string[] = ["queued", "running", "success", "failure", "cancelled"];

export const isOver = (status: JobStatus): boolean => status !== "queued" && status !== "running";

export interface RunState {
  run: RunDetail;
  /** The sequence number of the last event that this state includes. */
  sequence: number;
  /** Whether an event requires a new snapshot: outputs, errors and new jobs are not in events. */
  stale: boolean;
}

/** Takes over a snapshot. An unchanged job keeps its object, so that React does not re-render it. */
export function mergeSnapshot(before: RunState | null, run: RunDetail): RunState {
  if (!before || before.run.id !== run.id) return { run, sequence: run.events, stale: false };
  // Events arrived while this snapshot was in flight, so it is out of date.
  if (run.events < before.sequence) return { ...before, stale: true };
  const known = new Map(before.run.jobs.map((job) => [job.id, job]));
  const jobs = run.jobs.map((job) => {
    const old = known.get(job.id);
    return old && isEqual(old, job) ? old : job;
  });
  return { run: { ...run, jobs }, sequence: run.events, stale: false };
}

function isEqual(one: FlowJob, other: FlowJob): boolean {
  // The client computes the duration of a running job itself.
  const ignored = { duration_ms: null };
  return JSON.stringify({ ...one, ...ignored }) === JSON.stringify({ ...other, ...ignored });
}

/** Applies events in order. Events that the state already includes are ignored. */
export function applyEvents(state: RunState, events: readonly RunEvent[]): RunState {
  const fresh = events.filter((event) => event.run_id === state.run.id && event.sequence > state.sequence);
  if (!fresh.length) return state;
  const indexes = new Map(state.run.jobs.map((job, index) => [job.id, index]));
  let jobs: FlowJob[] | null = null;
  let run = state.run;
  let { stale, sequence } = state;
  for (const event of fresh) {
    sequence = event.sequence;
    if (!event.job_id) {
      run = updateRun(run, event);
      continue;
    }
    if (event.event === "started" && run.status === "queued") {
      run = { ...run, status: "running", started_at: run.started_at ?? event.timestamp_ms };
    }
    const index = indexes.get(event.job_id);
    const job = index === undefined ? undefined : (jobs ?? run.jobs)[index];
    const status = STATUS_AFTER[event.event];
    if (index === undefined || !job || !status) {
      stale = true;
      continue;
    }
    jobs ??= [...run.jobs];
    jobs[index] = updateJob(job, event, status);
    stale = stale || isOver(status);
  }
  return { run: jobs ? { ...run, jobs } : run, sequence, stale };
}

function updateJob(job: FlowJob, event: RunEvent, status: JobStatus): FlowJob {
  const same = { ...job, status, uid: event.uid || job.uid, attempt: event.attempt || job.attempt };
  switch (status) {
    case "running":
      return {
        ...same,
        started_at: event.timestamp_ms,
        finished_at: null,
        duration_ms: null,
        worker_id: event.worker_id || job.worker_id,
        error: "",
      };
    case "queued":
      return { ...same, started_at: null, finished_at: null, duration_ms: null, error: event.why };
    default: {
      const started = job.started_at;
      return {
        ...same,
        finished_at: event.timestamp_ms,
        duration_ms: started === null ? null : Math.max(0, event.timestamp_ms - started),
        error: status === "failure" ? event.why || job.error : "",
      };
    }
  }
}

function updateRun(run: RunDetail, event: RunEvent): RunDetail {
  switch (event.event) {
    case "run_finished": {
      const status = STATUSES.includes(event.why) ? (event.why as RunStatus) : run.status;
      const from = run.started_at ?? event.timestamp_ms;
      return {
        ...run,
        status,
        finished_at: event.timestamp_ms,
        duration_ms: Math.max(0, event.timestamp_ms - from),
      };
    }
    case "run_reopened":
      return { ...run, status: "running", finished_at: null, cancel_requested: false };
    case "run_cancelling":
      return { ...run, cancel_requested: true, reason: event.why || run.reason };
    default:
      return run;
  }
}
