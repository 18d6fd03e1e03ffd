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

test("it leads from the job that ended last back over those it waited for", () => {
  const jobs = [
    job("build", [], 0, 10),
    job("lint", [], 0, 3),
    job("test", ["build", "lint"], 10, 50),
    job("docs", ["lint"], 3, 20),
    job("ship", ["test", "docs"], 50, 60),
  ];
  assert.deepEqual(path(jobs, 100), ["build", "test", "ship"]);
});

test("what still runs ends now", () => {
  const jobs = [job("a", [], 0, 10), job("b", [], 0, null), job("c", ["a"], 10, 20), job("d", ["c"], null, null)];
  assert.deepEqual(path(jobs, 30), ["b"]);
});

test("an edge that leaps over the path is not on it", () => {
  const jobs = [job("a", [], 0, 10), job("b", ["a"], 10, 20), job("c", ["a", "b"], 20, 30)];
  const found = criticalPath(jobs, 0);
  assert.equal(found.get("c"), "b");
  assert.equal(found.get("a"), "");
});

test("nothing has begun: there is none", () => {
  assert.equal(criticalPath([job("a", [], null, null)], 5).size, 0);
});

test("jobs that nobody knows, and circles, do not hang it", () => {
  assert.deepEqual(path([job("a", ["b", "gone"], 0, 2), job("b", ["a"], 0, 1)], 5), ["b", "a"]);
});
