// The workflows, credentials and executions of one request: does what n8n's server does around its engine.
"use strict";
const { runner } = require("./code.cjs");

const SUB = "n8n-nodes-base.executeWorkflowTrigger";
const ERROR = "n8n-nodes-base.errorTrigger";
const STARTS = /([tT]rigger|\.webhook|\.cron|\.interval|\.start)$/;
// Grace in ms for a node to notice that its execution was stopped.
const PATIENCE = 1000;
// Execution ids are unique across parallel labs, as they are within one n8n.
let last = require("crypto").randomInt(1e8) * 1000;

exports.World = class {
  constructor(engine, { workflows, credentials }) {
    this.engine = engine;
    this.workflows = new Map(workflows.map((one) => [one.id ?? one.name, one]));
    this.credentials = new engine.Credentials(credentials);
    this.executions = [];
    this.underWay = new Set();
    this.handlers = new Set();
    this.stops = [];
    this.saved = new Map();
    this.startRunnerTask = runner(engine);
  }

  find(start) {
    const found = this.workflows.get(start) ?? [...this.workflows.values()].find((one) => one.name === start);
    if (!found) throw new Error(`there is no workflow ${start}`);
    return found;
  }

  // Runs until the first execution and everything it started (error workflows, detached sub-workflows) have ended.
  // Sub-workflows of a stopped execution continue and are not awaited.
  // retries: how often the execution is retried while it fails, as with n8n's retry button.
  async run({ start, node, mode, items, retries = 0 }) {
    let root = await this.execute(this.find(start), { mode, items, node });
    for (let tried = 0; tried < retries && this.saved.has(root.id); tried += 1) {
      await this.settled(root);
      root = await this.retry(root);
    }
    await this.settled(root);
    return root;
  }

  async settled(root) {
    for (let more = this.left(root); more.length; more = this.left(root)) await Promise.all(more);
  }

  // As the server does: the saved run data without the error and the failed run; the execution stack is where it resumes.
  retry(record) {
    const { data, execution } = this.saved.get(record.id);
    const again = JSON.parse(JSON.stringify(execution));
    delete again.resultData.error;
    const runs = again.resultData.runData[record.lastNode] ?? [];
    if (runs.at(-1)?.error !== undefined) runs.pop();
    return this.execute(data, { mode: "retry", retryOf: record.id, again });
  }

  left(root) {
    return [...this.underWay].filter((one) => !root.stopped || this.handlers.has(one));
  }

  stop() {
    for (const stop of this.stops) stop();
  }

  execute(data, options) {
    const running = this.executeNow(data, options).finally(() => this.underWay.delete(running));
    running.catch(() => {});
    this.underWay.add(running);
    return running;
  }

  async executeNow(data, { mode, items, node, type, parent, before, retryOf, again }) {
    const { core, workflow: n8n, nodeTypes } = this.engine;
    const id = String((last += 1));
    const settings = data.settings ?? {};
    const { name, nodes, connections } = data;
    const workflow = new n8n.Workflow({ id: data.id, name, nodes, connections, active: true, nodeTypes, staticData: {}, settings });
    const start = this.startNode(workflow, node, type);
    const record = { id, workflow: { id: data.id, name }, mode, parent: parent?.executionId, retryOf, startedAt: Date.now() };
    this.executions.push(record);

    const limit = settings.executionTimeout > 0 ? Date.now() + settings.executionTimeout * 1000 : Infinity;
    const deadline = Math.min(limit, before ?? Infinity);
    const execution = again ?? n8n.createRunExecutionData({
      // A manual execution in the editor pins the trigger's output.
      resultData: mode === "manual" && items ? { pinData: { [start.name]: items } } : {},
      executionData: {
        contextData: {},
        metadata: {},
        nodeExecutionStack: [{ node: start, data: { main: [items ?? [{ json: {} }]] }, metadata: { parentExecution: parent }, source: null }],
        waitingExecution: {},
        waitingExecutionSource: {},
      },
      parentExecution: parent,
    });
    record.runData = execution.resultData.runData; // live, for "look" requests
    const additional = this.additional(record, data, deadline);
    const running = new core.WorkflowExecute(additional, mode, execution).processRunExecutionData(workflow);
    const stop = () => { record.stopped = true; running.cancel(); };
    if (!parent) this.stops.push(stop);
    const timer = Number.isFinite(deadline) && !parent ? setTimeout(stop, deadline - Date.now()) : undefined;
    // A stopped execution ends with its current node and counts as failed; when that node never ends (Wait in n8n 1, or
    // one whose server is unreachable), the engine's first status remains: canceled, without a failure.
    const cut = new Promise((resolve) => {
      additional.hooks.addHandler("workflowExecuteAfter", async (run) => {
        if (run.status === "canceled") setTimeout(resolve, PATIENCE, run);
      });
    });
    const run = await Promise.race([running, cut]);
    clearTimeout(timer);

    const result = run.data.resultData;
    const lastRun = result.runData[result.lastNodeExecuted]?.at(-1);
    Object.assign(record, {
      status: run.status, finished: run.finished, error: result.error, lastNode: result.lastNodeExecuted, runData: result.runData,
      outputs: lastRun?.data?.main ?? [[]], waitTill: run.waitTill, finishedAt: Date.now(),
    });
    // As in the server, manual executions have a separate save setting.
    const kept = mode === "manual" ? settings.saveManualExecutions !== false : settings.saveDataErrorExecution !== "none";
    if (result.error && kept) this.saved.set(id, { data, execution: run.data });
    record.saved = this.saved.has(id);
    this.tellOfFailure(record, data, run);
    return record;
  }

  startNode(workflow, node, type) {
    if (node) {
      const found = workflow.getNode(node);
      if (!found) throw new Error(`${workflow.name} has no node ${node}`);
      return found;
    }
    const enabled = Object.values(workflow.nodes).filter((one) => !one.disabled);
    const found = type ? enabled.find((one) => one.type === type) : enabled.find((one) => STARTS.test(one.type));
    if (!found) throw new Error(`${workflow.name} has no ${type ?? "node to start from"}`);
    return found;
  }

  // As in the server: not for manual executions, and an error workflow does not handle its own failure.
  tellOfFailure(record, data, run) {
    const { error } = run.data.resultData;
    if (!error || record.mode === "manual") return;
    const to = data.settings?.errorWorkflow;
    const own = data.nodes.some((node) => node.type === ERROR && !node.disabled);
    const handler = to && !(record.mode === "error" && to === data.id) ? to : own && record.mode !== "error" ? data.id : undefined;
    if (handler === undefined) return;
    const { id, lastNode: lastNodeExecuted, mode, retryOf, workflow } = record;
    const details = { message: error.message, stack: error.stack, name: error.name, description: error.description };
    const json = { execution: { id, url: `http://localhost/execution/${id}`, retryOf, error: details, lastNodeExecuted, mode }, workflow };
    this.handlers.add(this.execute(this.find(handler), { mode: "error", items: [{ json }], type: ERROR }));
  }

  additional(record, data, deadline) {
    const urls = Object.fromEntries(
      ["rest", "form", "form-waiting", "form-test", "webhook", "webhook-waiting", "webhook-test", "mcp", "mcp-test"].map((kind) => [
        `${kind.replace(/-(\w)/g, (_, letter) => letter.toUpperCase())}BaseUrl`, `http://localhost/${kind}`,
      ]),
    );
    return {
      ...urls,
      restApiUrl: "http://localhost/rest",
      instanceBaseUrl: "http://localhost/",
      executionId: record.id,
      credentialsHelper: this.credentials,
      currentNodeExecutionIndex: 0,
      executionTimeoutTimestamp: Number.isFinite(deadline) ? deadline : undefined,
      hooks: new this.engine.core.ExecutionLifecycleHooks(record.mode, record.id, data),
      userId: "lab",
      workflowId: data.id,
      variables: {},
      setExecutionStatus() {},
      sendDataToUI() {},
      logAiEvent() {},
      getRuntimeCredential: async () => undefined,
      getRunnerStatus: () => ({ available: true }),
      getRunExecutionData: async () => undefined,
      startRunnerTask: this.startRunnerTask,
      executeWorkflow: (info, _additional, options) => this.call(info, options, deadline),
    };
  }

  async call(info, { inputData, parentExecution, doNotWaitToFinish }, before) {
    const data = info.code ?? this.workflows.get(info.id);
    if (!data) throw new Error(`there is no workflow ${info.id}`);
    const called = this.execute(data, { mode: "integrated", items: inputData, type: SUB, parent: parentExecution, before });
    if (doNotWaitToFinish) return { executionId: this.executions.at(-1).id, data: [null] };
    const done = await called;
    if (!done.finished && done.status !== "waiting") throw asError(done.error ?? { message: `${done.workflow.name} was ${done.status}` });
    // A copy, because the caller modifies the items; the record keeps the original output.
    return { executionId: done.id, data: this.engine.workflow.deepCopy(done.outputs), waitTill: done.waitTill };
  }
};

function asError(error) {
  return error instanceof Error ? error : Object.assign(new Error(error.message), error);
}
