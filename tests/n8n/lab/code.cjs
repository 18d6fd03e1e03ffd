// A Code node of n8n 2 sends its script to a task runner process of the server. Here it runs in a separate context of
// this process; its input and the handling of its result are n8n's own code.
"use strict";
const vm = require("vm");

exports.runner = ({ workflow: { WorkflowDataProxy } }) =>
  async (additional, type, settings, context, _input, node, workflow, runData, runIndex, itemIndex, name, items, siblings, mode, _env, data) => {
    if (type !== "javascript") throw new Error(`the lab runs no ${type}`);
    const keys = { $execution: { id: additional.executionId, mode }, $executionId: additional.executionId };
    const see = (index) =>
      new WorkflowDataProxy(workflow, runData, runIndex, index, name, items, siblings, mode, keys, data).getDataProxy();
    const run = (index, more) => {
      const seen = see(index);
      const globals = { ...settings.additionalProperties, console, Buffer, setTimeout, clearTimeout, ...more };
      const scope = new Proxy(globals, {
        has: () => true,
        // n8n's proxy reports every name as defined.
        get: (target, key) => (key in target ? target[key] : (globalThis[key] ?? seen[key])),
      });
      const script = `(function (scope) { with (scope) { return (async function () {${settings.code}\n}).call({}); } })`;
      return vm.runInThisContext(script, { filename: node.name })(scope);
    };
    try {
      if (settings.nodeMode === "runOnceForAllItems") return { ok: true, result: await run(itemIndex, { items }) };
      const { startIndex, count } = settings.chunk ?? { startIndex: 0, count: items.length };
      const result = [];
      for (let index = startIndex; index < startIndex + count; index += 1) {
        const made = await run(index, { item: items[index] });
        if (made) result.push({ ...(made.json ? made : { json: made }), pairedItem: { item: index } });
      }
      return { ok: true, result };
    } catch (error) {
      return { ok: false, error };
    }
  };
