// Reads requests as lines of JSON from stdin and writes replies to stdout, concurrently. `node lab.cjs ENGINE-FOLDER`
//   {"id": 1, "do": "run", "workflows": […], "credentials": […], "start": "id or name", "node"?, "mode", "items"?, "retries"?}
//   {"id": 2, "do": "look", "run": 1}: return the progress of that run
//   {"id": 3, "do": "stop", "run": 1}: stop that execution; the executions it started continue
// A reply: {"id": 1, "executions": [the first one first], "failed"?: "error of the lab"}
"use strict";
const readline = require("readline");
const { write } = process.stdout;

// stdout is for replies only: output of workflows and libraries is redirected.
const answer = (text) => write.call(process.stdout, text);
process.stdout.write = (...all) => process.stderr.write(...all);

const { World } = require("./world.cjs");
const worlds = new Map();
let engine;

function plain(key, shown) {
  const value = this[key];
  if (!(value instanceof Error)) return shown;
  const { name, message, description, messages, httpCode, node } = value;
  return { name, message, description: description ?? undefined, messages, httpCode: httpCode ?? undefined, node: node?.name };
}

function tell(id, executions, failed) {
  answer(`${JSON.stringify({ id, executions, failed }, plain)}\n`);
}

async function serve({ id, do: verb, run, ...request }) {
  if (verb === "stop") worlds.get(run)?.stop();
  if (verb !== "run") return tell(id, worlds.get(run)?.executions ?? []);
  const world = new World(engine, request);
  worlds.set(id, world);
  let failed;
  try {
    await world.run(request);
  } catch (error) {
    failed = error.stack;
  }
  worlds.delete(id);
  return tell(id, world.executions, failed);
}

// An unhandled rejection of a node must not end the process; its execution records the failure.
process.on("unhandledRejection", (error) => process.stderr.write(`${error?.stack ?? error}\n`));
process.on("uncaughtException", (error) => process.stderr.write(`${error?.stack ?? error}\n`));

require("./engine.cjs").load(process.argv[2]).then((loaded) => {
  engine = loaded;
  const requests = readline.createInterface({ input: process.stdin });
  requests.on("line", (line) => void serve(JSON.parse(line))).on("close", () => process.exit(0));
  answer(`${JSON.stringify({ ready: engine.versions })}\n`);
}, (error) => {
  process.stderr.write(error.stack);
  process.exit(1);
});
