// A client for the HTTP API in TypeScript, without a library: workflows, logs, live logs, workers.
// Run it with Node 22.18 or later, which executes TypeScript: node client.ts http://127.0.0.1:3000

type Status = "queued" | "running" | "success" | "failure" | "skipped" | "cancelled";

interface Job {
  id: string;
  name: string;
  status: Status;
  command: string;
  duration_secs: number | null; // whole seconds; duration_ms is exact
  duration_ms: number | null;
  started_at: number | null;
  depends_on: string[];
  output: string | null;
  attempt: number; // counted from 0
  metadata: Record<string, unknown>;
}

interface Workflow {
  id: string;
  name: string;
  trigger: string;
  jobs: Job[];
}

interface LogChunk {
  workflow_id: string;
  job_id: string;
  sequence: number; // counted from 0
  data: string;
  timestamp_ms: number;
  stream: "stdout" | "stderr";
}

interface WorkerInfo {
  worker_id: string;
  labels: string[];
  registered_at_ms: number;
  last_heartbeat_ms: number;
  current_job: string | null;
  status: "idle" | "busy" | "offline";
}

export class BackstayError extends Error {
  readonly status: number;

  constructor(status: number, detail: string) {
    super(`${status}: ${detail}`);
    this.status = status;
  }
}

export class Backstay {
  readonly url: string;
  readonly token: string;

  constructor(url: string, token = "") {
    this.url = url.replace(/\/$/, "");
    this.token = token;
  }

  listWorkflows = (limit = 100, offset = 0) =>
    this.request<Workflow[]>("GET", `/api/workflows?limit=${limit}&offset=${offset}`);
  createWorkflow = (workflow: object) => this.request<Workflow>("POST", "/api/workflows", workflow);
  status = (id: string) => this.request<Workflow>("GET", `/api/workflows/${encodeURIComponent(id)}/status`);
  run = (id: string, inputs: object = {}) =>
    this.request<{ run_id: string; status: Status }>("POST", `/api/workflows/${encodeURIComponent(id)}/run`, { inputs });
  cancel = (id: string) =>
    this.request<{ run_id: string }>("POST", `/api/workflows/${encodeURIComponent(id)}/cancel`, {});
  isCancelled = (id: string, job: string) =>
    this.request<boolean>("GET", `/api/jobs/${encodeURIComponent(id)}/${encodeURIComponent(job)}/cancelled`);
  logs = (id: string, job: string) => this.request<LogChunk[]>("GET", this.#job(id, job, "logs"));
  workers = () => this.request<WorkerInfo[]>("GET", "/api/workers");

  /** Yield a job's log chunks as they arrive. After a disconnect, resume behind the last chunk: no gap, no duplicate. */
  async *streamLogs(id: string, job: string): AsyncGenerator<LogChunk> {
    let last = "";
    for (;;) {
      const headers: Record<string, string> = { ...this.#headers(), ...(last ? { "last-event-id": last } : {}) };
      const response = await fetch(this.url + this.#job(id, job, "logs/stream"), { headers });
      if (!response.ok || !response.body) throw await this.#error(response);
      try {
        for await (const event of events(response.body)) {
          if (event.kind === "end") return;
          last = event.id;
          yield JSON.parse(event.data) as LogChunk;
        }
      } catch (error) {
        if (!(error instanceof TypeError)) throw error; // fetch raises TypeError when a connection breaks
      }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }

  async request<T>(method: string, path: string, body?: object): Promise<T> {
    const headers = { ...this.#headers(), ...(body ? { "content-type": "application/json" } : {}) };
    const response = await fetch(this.url + path, { method, headers, body: body && JSON.stringify(body) });
    if (!response.ok) throw await this.#error(response);
    return (await response.json()) as T;
  }

  #job = (id: string, job: string, rest: string) =>
    `/api/workflows/${encodeURIComponent(id)}/jobs/${encodeURIComponent(job)}/${rest}`;
  #headers = (): Record<string, string> => (this.token ? { authorization: `Bearer ${this.token}` } : {});
  #error = async (response: Response) =>
    new BackstayError(response.status, ((await response.json().catch(() => ({}))) as { detail?: string }).detail ?? "");
}

async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<{ kind: string; id: string; data: string }> {
  let text = "";
  for await (const chunk of body.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const fields = new Map(
        text.slice(0, end).split("\n").map((line) => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]),
      );
      text = text.slice(end + 2);
      if (fields.has("event"))
        yield { kind: fields.get("event")!, id: fields.get("id") ?? "", data: fields.get("data") ?? "" };
    }
  }
}

if (process.argv[1]?.endsWith("client.ts")) {
  const backstay = new Backstay(process.argv[2] ?? "http://127.0.0.1:3000", process.env.BACKSTAY_TOKEN);
  await backstay.createWorkflow({
    name: "hello",
    jobs: { greet: { run: "echo hello; sleep 0.2; echo world" }, wave: { needs: "greet", run: "echo bye" } },
  });
  const { run_id } = await backstay.run("hello");
  for await (const chunk of backstay.streamLogs("hello", "greet")) process.stdout.write(chunk.data);
  for await (const chunk of backstay.streamLogs("hello", "wave")) process.stdout.write(chunk.data);
  const shown = await backstay.status("hello");
  console.log(run_id, shown.jobs.map((job) => `${job.id}: ${job.status}`).join(", "));
  console.log((await backstay.logs("hello", "greet")).length > 0, (await backstay.listWorkflows()).length);
  console.log((await backstay.workers()).map((worker) => worker.status).join(", "));
  await backstay.run("hello");
  await backstay.cancel("hello");
  console.log(await backstay.isCancelled("hello", "wave"));
  await backstay.run("none").catch((error: BackstayError) => console.log(error.status));
}
