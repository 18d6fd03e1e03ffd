// The part of the server's API that the dashboard uses. The types match /openapi.json.

import { token } from "./token.ts";

export type RunStatus = "queued" | "running" | "success" | "failure" | "cancelled";
export type JobStatus = RunStatus | "skipped";

export interface RunInfo {
  id: string;
  workflow_id: string;
  version: number;
  status: RunStatus;
  created_at: number;
  started_at: number | null;
  finished_at: number | null;
  duration_ms: number | null;
  cancel_requested: boolean;
  reason: string;
  /** The number of jobs by state. */
  counts: Record<string, number>;
  /** The sequence number of the last event. */
  events: number;
}

export interface FlowJob {
  /** The job's name in the workflow. */
  id: string;
  name: string;
  status: JobStatus;
  command: string;
  duration_ms: number | null;
  started_at: number | null;
  finished_at: number | null;
  depends_on: string[];
  output: string | null;
  /** The job's own id in this run; "" until it is enqueued. */
  uid: string;
  attempt: number;
  required_labels: string[];
  max_retries: number;
  outputs: Record<string, string>;
  worker_id: string;
  error: string;
}

export interface RunDetail extends RunInfo {
  inputs: Record<string, unknown>;
  jobs: FlowJob[];
}

export type EventKind =
  | "ready"
  | "started"
  | "scheduled"
  | "completed"
  | "failed"
  | "cancelled"
  | "skipped"
  | "lease_expired"
  | "deciding"
  | "decided"
  | "run_created"
  | "run_finished"
  | "run_reopened"
  | "run_cancelling";

export interface RunEvent {
  event: EventKind;
  workflow_id: string;
  run_id: string;
  /** "": an event of the run itself. */
  job_id: string;
  uid: string;
  sequence: number;
  timestamp_ms: number;
  attempt: number;
  worker_id: string;
  why: string;
}

export interface LogChunk {
  /** Counted from 0. */
  sequence: number;
  data: string;
  timestamp_ms: number;
  stream: "stdout" | "stderr";
  /** `stdout`, `stderr`, or `log` for messages. */
  source: string;
}

/** An error response of the server, with the detail of its RFC 9457 problem as the message. */
export class Refusal extends Error {
  readonly status: number;

  constructor(status: number, detail: string) {
    super(detail);
    this.status = status;
  }
}

const segment = encodeURIComponent;

export const paths = {
  runs: (limit: number, status: RunStatus | "") => `api/runs?limit=${limit}${status && `&status=${status}`}`,
  run: (run: string) => `api/runs/${segment(run)}`,
  runEvents: (run: string) => `api/runs/${segment(run)}/events/stream`,
  events: "api/events",
  log: (workflow: string, run: string, job: string) =>
    `api/workflows/${segment(workflow)}/jobs/${segment(job)}/logs/stream?run=${segment(run)}`,
};

/** Sends a request, with the token if there is one. Throws Refusal for an error status. */
export async function request(path: string, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  const secret = token();
  if (secret) headers.set("authorization", `Bearer ${secret}`);
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw await toRefusal(answer);
  return answer;
}

async function toRefusal(answer: Response): Promise<Refusal> {
  let detail = `The server returned status ${answer.status}.`;
  try {
    const body = (await answer.json()) as { detail?: unknown };
    if (typeof body.detail === "string") detail = body.detail;
  } catch {
    // Not a problem document, for example an error page of a proxy.
  }
  return new Refusal(answer.status, detail);
}

async function read<T>(path: string, signal?: AbortSignal): Promise<T> {
  const answer = await request(path, signal ? { signal } : {});
  return (await answer.json()) as T;
}

async function post<T>(path: string): Promise<T> {
  const answer = await request(path, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  return (await answer.json()) as T;
}

export const listRuns = (limit: number, status: RunStatus | "", signal?: AbortSignal) =>
  read<RunInfo[]>(paths.runs(limit, status), signal);
export const getRun = (run: string, signal?: AbortSignal) => read<RunDetail>(paths.run(run), signal);
export const cancelRun = (run: string) => post<RunInfo>(`${paths.run(run)}/cancel`);
export const rerunFailed = (run: string) => post<RunInfo>(`${paths.run(run)}/rerun-failed`);
export const retryJob = (run: string, job: string) => post<unknown>(`${paths.run(run)}/jobs/${segment(job)}/retry`);
