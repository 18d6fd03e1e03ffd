import assert from "node:assert/strict";
import { test } from "node:test";
import type { EventKind, FlowJob, RunDetail, RunEvent } from "../src/api.ts";
import { adopt, apply, type RunState } from "../src/run_state.ts";

const job = (id: string, more: Partial<FlowJob> = {}): FlowJob => ({
  id,
  name: id,
  status: "queued",
  command: "",
  duration_secs: null,
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
  duration_secs: null,
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
const begin = (): RunState => adopt(null, detail());
const one = (state: RunState, id: string) => state.run.jobs.find((found) => found.id === id);

test("a job is followed from queued to its end", () => {
  const running = apply(begin(), [event(3, "started", "a")]);
  assert.equal(one(running, "a")?.status, "running");
  assert.equal(running.run.status, "running");
  assert.equal(running.run.started_at, 3000);
  const done = apply(running, [event(4, "completed", "a")]);
  assert.equal(one(done, "a")?.status, "success");
  assert.equal(one(done, "a")?.duration_secs, 1);
  assert.ok(done.stale, "its outputs are the server's to tell");
});

test("events that are in it already change nothing", () => {
  const state = begin();
  assert.equal(apply(state, [event(1, "started", "a"), event(2, "failed", "a")]), state);
  assert.equal(apply(state, [event(9, "failed", "a", { run_id: "other" })]), state);
});

test("jobs that nothing happened to stay the same objects", () => {
  const state = begin();
  assert.equal(one(apply(state, [event(3, "started", "a")]), "b"), one(state, "b"));
  const again = adopt(state, detail({ events: 3, jobs: [job("a", { status: "success" }), job("b")] }));
  assert.equal(one(again, "b"), one(state, "b"));
  assert.equal(one(again, "a")?.status, "success");
});

test("an answer that is older than the events is not believed", () => {
  const state = apply(begin(), [event(3, "started", "a"), event(4, "completed", "a")]);
  const after = adopt(state, detail({ events: 3 }));
  assert.equal(one(after, "a")?.status, "success");
  assert.ok(after.stale);
});

test("a retry puts a job back, with its error", () => {
  const state = apply(begin(), [event(3, "started", "a"), event(4, "scheduled", "a", { why: "exit code 3" })]);
  assert.equal(one(state, "a")?.status, "queued");
  assert.equal(one(state, "a")?.error, "exit code 3");
  assert.equal(one(apply(state, [event(5, "started", "a", { attempt: 2 })]), "a")?.attempt, 2);
});

test("a job that was not known asks for another look", () => {
  assert.ok(apply(begin(), [event(3, "ready", "map (1)")]).stale);
});

test("a run ends, and goes on after all", () => {
  const ended = apply(begin(), [event(3, "started", "a"), event(5, "run_finished", "", { why: "failure" })]);
  assert.equal(ended.run.status, "failure");
  assert.equal(ended.run.duration_secs, 2);
  const open = apply(ended, [event(6, "run_reopened")]);
  assert.equal(open.run.status, "running");
  assert.equal(open.run.finished_at, null);
  assert.ok(apply(open, [event(7, "run_cancelling")]).run.cancel_requested);
});
