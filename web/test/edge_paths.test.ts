import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobStatus } from "../src/api.ts";
import { edgePaths } from "../src/edge_paths.ts";

const job = (id: string, status: JobStatus, depends_on: string[]) => ({ id, status, depends_on });
const box = { width: 100, height: 40 };
const positions = new Map([
  ["a", { x: 0, y: 0 }],
  ["b", { x: 200, y: 0 }],
  ["c", { x: 200, y: 60 }],
]);

test("edges of one style share a path, each from the right side of a node to the left side of another", () => {
  const jobs = [job("a", "success", []), job("b", "queued", ["a"]), job("c", "queued", ["a"])];
  assert.deepEqual([...edgePaths(jobs, positions, new Map(), box)], [
    ["queued", "M100 20C150 20 150 20 200 20M100 20C150 20 150 80 200 80"],
  ]);
});

test("critical edges, and edges of another status, have paths of their own", () => {
  const jobs = [job("a", "success", []), job("b", "running", ["a"]), job("c", "success", ["a"])];
  const critical = new Map([["b", "a"]]);
  assert.deepEqual([...edgePaths(jobs, positions, critical, box).keys()], ["critical running", "success"]);
});

test("an edge to or from a job without a position is not drawn", () => {
  const jobs = [job("a", "success", ["gone"]), job("new", "queued", ["a"])];
  assert.equal(edgePaths(jobs, positions, new Map(), box).size, 0);
});
