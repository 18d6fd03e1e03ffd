import assert from "node:assert/strict";
import { test } from "node:test";
import { criticalPath } from "../src/critical_path.ts";

const job = (id: string, depends_on: string[], started_at: number | null, finished_at: number | null) => ({
  id,
  depends_on,
  started_at,
  finished_at,
});
const path = (...args: Parameters<typeof criticalPath>) => [...criticalPath(...args).keys()].reverse();

test("the path leads from the job that finished last back over the dependencies that finished last", () => {
  const jobs = [
    job("build", [], 0, 10),
    job("lint", [], 0, 3),
    job("test", ["build", "lint"], 10, 50),
    job("docs", ["lint"], 3, 20),
    job("ship", ["test", "docs"], 50, 60),
  ];
  assert.deepEqual(path(jobs, 100), ["build", "test", "ship"]);
});

test("a running job counts as finished now", () => {
  const jobs = [job("a", [], 0, 10), job("b", [], 0, null), job("c", ["a"], 10, 20), job("d", ["c"], null, null)];
  assert.deepEqual(path(jobs, 30), ["b"]);
});

test("an edge that bypasses a job on the path is not on it", () => {
  const jobs = [job("a", [], 0, 10), job("b", ["a"], 10, 20), job("c", ["a", "b"], 20, 30)];
  const found = criticalPath(jobs, 0);
  assert.equal(found.get("c"), "b");
  assert.equal(found.get("a"), "");
});

test("a run without started jobs has no critical path", () => {
  assert.equal(criticalPath([job("a", [], null, null)], 5).size, 0);
});

test("unknown dependencies and cycles do not hang the search", () => {
  assert.deepEqual(path([job("a", ["b", "gone"], 0, 2), job("b", ["a"], 0, 1)], 5), ["b", "a"]);
});
