import assert from "node:assert/strict";
import { test } from "node:test";
import { duration, plainText, shownPiece } from "../src/format.ts";
import { parseRoute, hrefFor } from "../src/route.ts";

test("durations read well at every size", () => {
  const shown = [0.042, 9.5, 42.25, 60, 185, 7620].map(duration);
  assert.deepEqual(shown, ["0.04 s", "9.50 s", "42.3 s", "1 m 00 s", "3 m 05 s", "2 h 07 m"]);
});

test("terminal escape sequences are removed", () => {
  assert.equal(plainText("\u001b[1;31mred\u001b[0m\r\nnext\u001b]8;;x\u0007"), "red\nnext");
});

test("a line that arrives in several chunks is one line", () => {
  const pieces = [
    { data: "10 %", source: "stdout" },
    { data: " 20 %\n", source: "stdout" },
    { data: "half", source: "stdout" },
    { data: "a warning\n", source: "stderr" },
    { data: "step 2", source: "log" },
    { data: "step 3", source: "log" },
  ];
  const text = pieces.map((piece, at) => shownPiece(piece, pieces[at + 1]?.source ?? piece.source)).join("");
  assert.equal(text, "10 % 20 %\nhalf\na warning\nstep 2\nstep 3\n");
});

test("a URL leads to its run and job, whatever their names", () => {
  const job = "test (3.11/linux) #1 %";
  assert.deepEqual(parseRoute(hrefFor("run-1", job)), { run: "run-1", job });
  assert.deepEqual(parseRoute(""), { run: "", job: "" });
  assert.deepEqual(parseRoute("#/runs/%E0%A4%A"), { run: "", job: "" });
});
