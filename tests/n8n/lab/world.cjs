// One request's workflows and credentials, and every execution in them: what n8n's server does around its engine.
"use strict";
const { runner } = require("./code.cjs");

const SUB = "n8n-nodes-base.executeWorkflowTrigger";
const ERROR = "n8n-nodes-base.errorTrigger";
const STARTS = /([tT]rigger|\.webhook|\.cron|\.interval|\.start)$/;
// How long a node may take to notice that its execution was stopped, in ms.
const PATIENCE = 1000;
// Executions of labs beside this one have other ids, as those of one n8n have.
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

  // Until the first execution is over, and all that it has caused: error workflows, sub-workflows nobody waits for.
  // What it had called when it was stopped goes on, and is not waited for.
  // retries: so many times is it retried, as somebody does who presses that button, for as long as it fails.
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

  // The server's way: what was saved, without the error and the run that failed; its stack says where it goes on.
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
      // Somebody who tries a workflow in the editor pins what its trigger would send.
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
    record.runData = execution.resultData.runData; // as it grows, for those who look
    const additional = this.additional(record, data, deadline);
    const running = new core.WorkflowExecute(additional, mode, execution).processRunExecutionData(workflow);
    const stop = () => { record.stopped = true; running.cancel(); };
    if (!parent) this.stops.push(stop);
    const timer = Number.isFinite(deadline) && !parent ? setTimeout(stop, deadline - Date.now()) : undefined;
    // Who is stopped ends with the node that runs, and is told of as failed; a node that never ends (Wait in n8n 1, or
    // one whose server is away) leaves the engine's first word: canceled, and no failure.
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
    // The server's rule: what somebody starts in the editor has a setting of its own.
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

  // The server's rule: not for executions from the editor; an error workflow does not handle its own failure.
  tellOfFailure(record, data, run) {
    const { error } = run.data.resultData;
    if (!error || record.mode === "manual") return;
    const to = data.settings?.errorWorkflow;
    const own = data.nodes.some((node) => node.type === ERROR && !node.disabled);
    const handler = to && !(record.mode === "error" && to === data.id) ? to : own && record.mode !== "error" ? data.id : undefined;
    if (handler === undefined) return;
    const { id, lastNode: lastNodeExecuted, mode, retryOf, workflow } = record;
    const told = { message: error.message, stack: error.stack, name: error.name, description: error.description };
    const json = { execution: { id, url: `http://localhost/execution/${id}`, retryOf, error: told, lastNodeExecuted, mode }, workflow };
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
    // A copy: the caller writes into what it gets, and the record is what the called one gave.
    return { executionId: done.id, data: this.engine.workflow.deepCopy(done.outputs), waitTill: done.waitTill };
  }
};

function asError(error) {
  return error instanceof Error ? error : Object.assign(new Error(error.message), error);
}
