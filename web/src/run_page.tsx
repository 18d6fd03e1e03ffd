import { lazy, Suspense, useCallback, useMemo } from "react";
import { Action } from "./action.tsx";
import { cancelRun, type RunDetail, rerunFailed } from "./api.ts";
import { serverNow } from "./clock.ts";
import { criticalPath } from "./critical_path.ts";
import { Elapsed } from "./elapsed.tsx";
import { moment } from "./format.ts";
import { JobList } from "./job_list.tsx";
import { JobPanel } from "./job_panel.tsx";
import { Live } from "./live.tsx";
import { show } from "./route.ts";
import { isOver } from "./run_state.ts";
import { Status } from "./status.tsx";
import { useRun } from "./use_run.ts";
import { Values } from "./values.tsx";

// Loaded lazily: only this page needs React Flow.
const Graph = lazy(() => import("./graph.tsx"));

/** One run: its jobs as a list and as a graph, and the details of the chosen job. */
export function RunPage({ id, job }: { id: string; job: string }) {
  const { run, live, problem, reload } = useRun(id);
  const choose = useCallback((name: string) => show(id, name), [id]);
  const close = useCallback(() => show(id, ""), [id]);
  const jobs = run?.jobs;
  const critical = useMemo(() => criticalPath(jobs ?? [], serverNow()), [jobs]);
  const chosen = jobs?.find((one) => one.id === job);
  if (!run) {
    return <main>{problem ? <p role="alert">{problem}</p> : <p className="faint">Loading…</p>}</main>;
  }
  return (
    <main className="run">
      <Head run={run} live={live} reload={reload} />
      {problem && <p role="alert">{problem}</p>}
      <div className={chosen ? "parts three" : "parts"}>
        <JobList jobs={run.jobs} critical={critical} chosen={job} onChoose={choose} />
        <section className="graph" aria-label="Graph of the jobs, with the same content as the list before it">
          <Suspense fallback={<p className="faint pad">Loading the graph…</p>}>
            <Graph jobs={run.jobs} critical={critical} chosen={job} onChoose={choose} />
          </Suspense>
          <span className="legend">critical path</span>
        </section>
        {chosen && <JobPanel key={chosen.id} run={run} job={chosen} onClose={close} reload={reload} />}
      </div>
    </main>
  );
}

function Head({ run, live, reload }: { run: RunDetail; live: boolean; reload: () => void }) {
  const over = isOver(run.status);
  const note = run.cancel_requested && !over ? { note: "cancelling" } : {};
  const failed = run.jobs.some((job) => job.status === "failure" || job.status === "cancelled");
  return (
    <div className="head">
      <h1>{run.workflow_id}</h1>
      {/* role=status: the only element whose changes a screen reader announces. */}
      <span role="status">
        <Status status={run.status} {...note} />
      </span>
      <Live live={live} over={over} />
      <dl className="facts">
        <div>
          <dt>Duration</dt>
          <dd>
            <Elapsed started={run.started_at} milliseconds={run.duration_ms} running={!over} />
          </dd>
        </div>
        <div>
          <dt>Started</dt>
          <dd>{run.started_at === null ? "–" : moment(run.started_at)}</dd>
        </div>
        <div>
          <dt>Run</dt>
          <dd>
            <code>{run.id}</code>
          </dd>
        </div>
        {run.reason && (
          <div>
            <dt>Reason</dt>
            <dd>{run.reason}</dd>
          </div>
        )}
      </dl>
      <Values title="Inputs" values={run.inputs} fold />
      <div className="actions">
        {!over && !run.cancel_requested && (
          <Action label="Cancel run" confirm="Cancel this run?" act={() => cancelRun(run.id)} done={reload} />
        )}
        {over && failed && <Action label="Re-run failed" act={() => rerunFailed(run.id)} done={reload} />}
      </div>
    </div>
  );
}
