// Make a lock file of npm's into one of ours: without the packages that no test needs, and without any address.
// `node trim.cjs LOCK`: n8n-nodes-base is taken without its 90 dependencies, but for those that package.json names.
"use strict";
const fs = require("fs");
const file = process.argv[2];
const lock = JSON.parse(fs.readFileSync(file));
const all = lock.packages;

// Clouds, telemetry, models of language: the engine loads them, no test has a use for them (see ../stand_ins.cjs).
const OUT = [
  /^@(aws-sdk|azure|jitl|langchain|opentelemetry|sentry|smithy|types)\//,
  /^(@n8n\/workflow-sdk|alasql|apache-arrow|jsdom|js-tiktoken|langsmith|quickjs-emscripten.*|ssh2)$/,
];
const out = (name) => OUT.some((pattern) => pattern.test(name));

// As Node.js does: from a folder's own node_modules upwards.
function resolve(from, name) {
  for (let at = from; ; at = at.slice(0, Math.max(at.lastIndexOf("/node_modules/"), 0))) {
    const found = `${at ? `${at}/` : ""}node_modules/${name}`;
    if (all[found]) return found;
    if (!at) return undefined;
  }
}

const kept = new Set([""]);
for (const place of kept) {
  const one = all[place];
  if (place.endsWith("node_modules/n8n-nodes-base")) delete one.dependencies;
  for (const name of Object.keys(one.dependencies ?? {})) {
    const found = out(name) ? undefined : resolve(place, name);
    if (found) kept.add(found);
    else delete one.dependencies[name];
  }
  for (const field of ["resolved", "funding", "license", "bin", "optionalDependencies", "peerDependencies", "peerDependenciesMeta", "hasInstallScript", "deprecated"]) delete one[field];
}
lock.packages = Object.fromEntries(Object.entries(all).filter(([place]) => kept.has(place)));
fs.writeFileSync(file, `${JSON.stringify(lock, null, 2)}\n`);
