import assert from "node:assert/strict";
import { test } from "node:test";
import type { EventKind, FlowJob, RunDetail, RunEvent } from "../src/api.ts";
import { applyEvents, mergeSnapshot, type RunState } from "../src/run_state.ts";

const job = (id: string, more: Partial<FlowJob> = {}): FlowJob => ({
  id,
  name: id,
  status: "queued",
  command: "",
  duration_ms: null,
  started_at: null,
  finished_at: null,
  depends_on: [],
  output: null,
  uid: `uid-${id}`,
  attempt: 0,
  required_labels: [],
  max_retries: 0,
  outputs: {},
  worker_id: "",
  error: "",
  ...more,
});
const detail = (more: Partial<RunDetail> = {}): RunDetail => ({
  id: "r",
  workflow_id: "ci",
  version: 1,
  status: "queued",
  created_at: 0,
  started_at: null,
  finished_at: null,
  duration_ms: null,
  cancel_requested: false,
  reason: "",
  counts: {},
  events: 2,
  inputs: {},
  jobs: [job("a"), job("b")],
  ...more,
});
const event = (sequence: number, kind: EventKind, job_id = "", more: Partial<RunEvent> = {}): RunEvent => ({
  event: kind,
  workflow_id: "ci",
  run_id: "r",
  job_id,
  uid: job_id && `uid-${job_id}`,
  sequence,
  timestamp_ms: sequence * 1000,
  attempt: 1,
  worker_id: "w",
  why: "",
  ...more,
});
const begin = (): RunState => mergeSnapshot(null, detail());
const one = (state: RunState, id: string) => state.run.jobs.find((found) => found.id === id);

test("a job is followed from queued to its end", () => {
  const running = applyEvents(begin(), [event(3, "started", "a")]);
  assert.equal(one(running, "a")?.status, "running");
  assert.equal(running.run.status, "running");
  assert.equal(running.run.started_at, 3000);
  const done = applyEvents(running, [event(4, "completed", "a")]);
  assert.equal(one(done, "a")?.status, "success");
  assert.equal(one(done, "a")?.duration_ms, 1000);
  assert.ok(done.stale, "outputs come only with a snapshot");
});

test("events that the state already includes change nothing", () => {
  const state = begin();
  assert.equal(applyEvents(state, [event(1, "started", "a"), event(2, "failed", "a")]), state);
  assert.equal(applyEvents(state, [event(9, "failed", "a", { run_id: "other" })]), state);
});

test("unchanged jobs keep their objects", () => {
  const state = begin();
  assert.equal(one(applyEvents(state, [event(3, "started", "a")]), "b"), one(state, "b"));
  const again = mergeSnapshot(state, detail({ events: 3, jobs: [job("a", { status: "success" }), job("b")] }));
  assert.equal(one(again, "b"), one(state, "b"));
  assert.equal(one(again, "a")?.status, "success");
});

test("a snapshot that is older than the events is ignored", () => {
  const state = applyEvents(begin(), [event(3, "started", "a"), event(4, "completed", "a")]);
  const after = mergeSnapshot(state, detail({ events: 3 }));
  assert.equal(one(after, "a")?.status, "success");
  assert.ok(after.stale);
});

test("a retry queues the job again, with its error", () => {
  const state = applyEvents(begin(), [event(3, "started", "a"), event(4, "scheduled", "a", { why: "exit code 3" })]);
  assert.equal(one(state, "a")?.status, "queued");
  assert.equal(one(state, "a")?.error, "exit code 3");
  assert.equal(one(applyEvents(state, [event(5, "started", "a", { attempt: 2 })]), "a")?.attempt, 2);
});

test("an event of an unknown job requires a new snapshot", () => {
  assert.ok(applyEvents(begin(), [event(3, "ready", "map (1)")]).stale);
});

test("a finished run can reopen", () => {
  const ended = applyEvents(begin(), [event(3, "started", "a"), event(5, "run_finished", "", { why: "failure" })]);
  assert.equal(ended.run.status, "failure");
  assert.equal(ended.run.duration_ms, 2000);
  const open = applyEvents(ended, [event(6, "run_reopened")]);
  assert.equal(open.run.status, "running");
  assert.equal(open.run.finished_at, null);
  assert.ok(applyEvents(open, [event(7, "run_cancelling")]).run.cancel_requested);
});
