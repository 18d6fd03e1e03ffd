// A run as it is known here: what the server said of it, and the events since. Pure: no clock, no network.

import type { EventKind, FlowJob, JobStatus, RunDetail, RunEvent, RunStatus } from "./api.ts";

const BECOMES: Partial<Record<EventKind, JobStatus>> = {
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
  /** The last event that is in it. */
  sequence: number;
  /** Whether an event spoke of something that only the server can tell: outputs, errors, new jobs. */
  stale: boolean;
}

/** What the server says now. Jobs that are as before stay the same objects, so that nothing is drawn again for them. */
export function adopt(before: RunState | null, run: RunDetail): RunState {
  if (!before || before.run.id !== run.id) return { run, sequence: run.events, stale: false };
  // An answer that was on its way while events came is older than they are.
  if (run.events < before.sequence) return { ...before, stale: true };
  const known = new Map(before.run.jobs.map((job) => [job.id, job]));
  const jobs = run.jobs.map((job) => {
    const old = known.get(job.id);
    return old && alike(old, job) ? old : job;
  });
  return { run: { ...run, jobs }, sequence: run.events, stale: false };
}

function alike(one: FlowJob, other: FlowJob): boolean {
  // The duration of a running job is counted here.
  const still = { duration_secs: null };
  return JSON.stringify({ ...one, ...still }) === JSON.stringify({ ...other, ...still });
}

/** The same with events, in their order. Those that are in it already change nothing. */
export function apply(state: RunState, events: readonly RunEvent[]): RunState {
  const fresh = events.filter((event) => event.run_id === state.run.id && event.sequence > state.sequence);
  if (!fresh.length) return state;
  const places = new Map(state.run.jobs.map((job, place) => [job.id, place]));
  let jobs: FlowJob[] | null = null;
  let run = state.run;
  let { stale, sequence } = state;
  for (const event of fresh) {
    sequence = event.sequence;
    if (!event.job_id) {
      run = ofRun(run, event);
      continue;
    }
    if (event.event === "started" && run.status === "queued") {
      run = { ...run, status: "running", started_at: run.started_at ?? event.timestamp_ms };
    }
    const place = places.get(event.job_id);
    const job = place === undefined ? undefined : (jobs ?? run.jobs)[place];
    const becomes = BECOMES[event.event];
    if (place === undefined || !job || !becomes) {
      stale = true;
      continue;
    }
    jobs ??= [...run.jobs];
    jobs[place] = ofJob(job, event, becomes);
    stale = stale || isOver(becomes);
  }
  return { run: jobs ? { ...run, jobs } : run, sequence, stale };
}

function ofJob(job: FlowJob, event: RunEvent, status: JobStatus): FlowJob {
  const same = { ...job, status, uid: event.uid || job.uid, attempt: event.attempt || job.attempt };
  switch (status) {
    case "running":
      return {
        ...same,
        started_at: event.timestamp_ms,
        finished_at: null,
        duration_secs: null,
        worker_id: event.worker_id || job.worker_id,
        error: "",
      };
    case "queued":
      return { ...same, started_at: null, finished_at: null, duration_secs: null, error: event.why };
    default: {
      const started = job.started_at;
      return {
        ...same,
        finished_at: event.timestamp_ms,
        duration_secs: started === null ? null : Math.max(0, event.timestamp_ms - started) / 1000,
        error: status === "failure" ? event.why || job.error : "",
      };
    }
  }
}

function ofRun(run: RunDetail, event: RunEvent): RunDetail {
  switch (event.event) {
    case "run_finished": {
      const status = STATUSES.includes(event.why) ? (event.why as RunStatus) : run.status;
      const from = run.started_at ?? event.timestamp_ms;
      return {
        ...run,
        status,
        finished_at: event.timestamp_ms,
        duration_secs: Math.max(0, event.timestamp_ms - from) / 1000,
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
