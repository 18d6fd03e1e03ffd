import assert from "node:assert/strict";
import { test } from "node:test";
import { SseParser } from "../src/sse_parser.ts";

const TEXT = 'retry: 250\n\nid: 7\nevent: log\ndata: {"a":1}\n\n: keep-alive\n\nid: 8\nevent: log\ndata: ä\r\ndata: b\r\n\r\nevent: end\ndata: {}\n\n';
const EVENTS = [
  { id: "7", event: "log", data: '{"a":1}' },
  { id: "8", event: "log", data: "ä\nb" },
  { id: "8", event: "end", data: "{}" },
];

test("events are the same wherever the text is split", () => {
  for (let at = 0; at <= TEXT.length; at++) {
    const parser = new SseParser();
    assert.deepEqual([...parser.push(TEXT.slice(0, at)), ...parser.push(TEXT.slice(at))], EVENTS);
    assert.equal(parser.retry, 250);
  }
});

test("an incomplete event is not returned", () => {
  const parser = new SseParser();
  assert.deepEqual(parser.push("id: 1\ndata: half\n"), []);
  assert.equal(parser.push("\n").length, 1);
});
