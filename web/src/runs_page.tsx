import { memo, useState } from "react";
import type { RunInfo, RunStatus } from "./api.ts";
import { Elapsed } from "./elapsed.tsx";
import { moment } from "./format.ts";
import { Live } from "./live.tsx";
import { hrefFor } from "./route.ts";
import { isOver } from "./run_state.ts";
import { Status } from "./status.tsx";
import { useRuns } from "./use_runs.ts";

const PAGE = 50;
const MAX_RUNS = 1000;
const STATUSES: RunStatus[] = ["queued", "running", "success", "failure", "cancelled"];

/** The list of runs, newest first. */
export function RunsPage() {
  const [limit, setLimit] = useState(PAGE);
  const [status, setStatus] = useState<RunStatus | "">("");
  const { runs, live, problem } = useRuns(limit, status);
  return (
    <main>
      <div className="head">
        <h1>Runs</h1>
        <Live live={live} />
        <label className="filter">
          Status{" "}
          <select value={status} onChange={(event) => setStatus(event.target.value as RunStatus | "")}>
            <option value="">all</option>
            {STATUSES.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
      </div>
      {problem && <p role="alert">{problem}</p>}
      {runs === null ? (
        <p className="faint">Loading…</p>
      ) : runs.length === 0 ? (
        <p className="faint">
          {status ? `No runs with status ${status}.` : "No runs yet. Start one with POST /api/workflows/NAME/run."}
        </p>
      ) : (
        <table className="runs">
          <thead>
            <tr>
              <th scope="col">Status</th>
              <th scope="col">Workflow</th>
              <th scope="col">Run</th>
              <th scope="col">Jobs</th>
              <th scope="col">Started</th>
              <th scope="col">Duration</th>
            </tr>
          </thead>
          <tbody>
            {runs.map((run) => (
              <Row key={run.id} run={run} />
            ))}
          </tbody>
        </table>
      )}
      {runs !== null && runs.length >= limit && limit < MAX_RUNS && (
        <button type="button" onClick={() => setLimit(Math.min(MAX_RUNS, limit * 2))}>
          Show older runs
        </button>
      )}
    </main>
  );
}

const same = (one: { run: RunInfo }, other: { run: RunInfo }) => JSON.stringify(one.run) === JSON.stringify(other.run);

const Row = memo(function Row({ run }: { run: RunInfo }) {
  const jobs = Object.values(run.counts).reduce((sum, count) => sum + count, 0);
  const over = (run.counts["completed"] ?? 0) + (run.counts["failed"] ?? 0);
  const idle = (run.counts["skipped"] ?? 0) + (run.counts["cancelled"] ?? 0);
  const note = run.cancel_requested && !isOver(run.status) ? { note: "cancelling" } : {};
  return (
    <tr>
      <td>
        <Status status={run.status} {...note} />
      </td>
      <th scope="row">
        <a href={hrefFor(run.id)}>{run.workflow_id}</a>
        <span className="faint"> v{run.version}</span>
      </th>
      <td>
        <code className="faint">{run.id}</code>
      </td>
      <td className="number">
        {over + idle} of {jobs}
      </td>
      <td>{run.started_at === null ? "–" : moment(run.started_at)}</td>
      <td className="number">
        <Elapsed started={run.started_at} milliseconds={run.duration_ms} running={!isOver(run.status)} />
      </td>
    </tr>
  );
}, same);
