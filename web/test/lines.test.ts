import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobStatus } from "../src/api.ts";
import { lines } from "../src/lines.ts";

const job = (id: string, status: JobStatus, depends_on: string[]) => ({ id, status, depends_on });
const box = { width: 100, height: 40 };
const places = new Map([
  ["a", { x: 0, y: 0 }],
  ["b", { x: 200, y: 0 }],
  ["c", { x: 200, y: 60 }],
]);

test("edges that look alike are one path, each from the right side of a box to the left one of another", () => {
  const jobs = [job("a", "success", []), job("b", "queued", ["a"]), job("c", "queued", ["a"])];
  assert.deepEqual([...lines(jobs, places, new Map(), box)], [
    ["queued", "M100 20C150 20 150 20 200 20M100 20C150 20 150 80 200 80"],
  ]);
});

test("those on the critical path, and those of another status, are apart", () => {
  const jobs = [job("a", "success", []), job("b", "running", ["a"]), job("c", "success", ["a"])];
  const critical = new Map([["b", "a"]]);
  assert.deepEqual([...lines(jobs, places, critical, box).keys()], ["critical running", "success"]);
});

test("an edge to or from a job that has no place is not drawn", () => {
  const jobs = [job("a", "success", ["gone"]), job("new", "queued", ["a"])];
  assert.equal(lines(jobs, places, new Map(), box).size, 0);
});
