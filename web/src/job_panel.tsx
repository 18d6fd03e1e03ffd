import { type KeyboardEvent, memo } from "react";
import { Action } from "./action.tsx";
import { type FlowJob, type RunDetail, retryJob } from "./api.ts";
import { Elapsed } from "./elapsed.tsx";
import { moment } from "./format.ts";
import { LogView } from "./log_view.tsx";
import { isOver } from "./run_state.ts";
import { Status } from "./status.tsx";
import { Values } from "./values.tsx";

interface Props {
  run: RunDetail;
  job: FlowJob;
  onClose: () => void;
  reload: () => void;
}

/** The details of one job: error, facts, command, inputs, outputs, log. */
export const JobPanel = memo(function JobPanel({ run, job, onClose, reload }: Props) {
  const keys = (event: KeyboardEvent) => {
    if (event.key === "Escape") onClose();
  };
  const inputs = Object.fromEntries(
    run.jobs.filter((one) => job.depends_on.includes(one.id)).map((one) => [one.id, one.outputs] as const),
  );
  const given = Object.fromEntries(
    Object.entries(inputs).flatMap(([name, outputs]) =>
      Object.entries(outputs).map(([key, value]) => [`${name}.${key}`, value] as const),
    ),
  );
  // A plain result instead of named outputs.
  const plain = job.output !== null && !Object.keys(job.outputs).length;
  return (
    <aside className="panel" aria-label={`Job ${job.name}`} onKeyDown={keys}>
      <div className="head">
        <h2>{job.name}</h2>
        <Status status={job.status} />
        <div className="actions">
          {(job.status === "failure" || job.status === "cancelled") && (
            <Action label="Retry job" act={() => retryJob(run.id, job.id)} done={reload} />
          )}
          <button type="button" className="quiet" aria-label="Close" onClick={onClose}>
            ✕
          </button>
        </div>
      </div>
      {job.error && job.status !== "success" && (
        <section>
          <h3>{isOver(job.status) ? "Error" : "Last error"}</h3>
          <pre className="error">{job.error}</pre>
        </section>
      )}
      <dl className="facts">
        <Fact name="Duration">
          <Elapsed started={job.started_at} milliseconds={job.duration_ms} running={job.status === "running"} />
        </Fact>
        <Fact name="Attempt">
          {job.attempt} of {job.max_retries + 1}
        </Fact>
        {job.started_at !== null && <Fact name="Started">{moment(job.started_at)}</Fact>}
        {job.worker_id && <Fact name="Worker">{job.worker_id}</Fact>}
        {job.required_labels.length > 0 && <Fact name="Labels">{job.required_labels.join(", ")}</Fact>}
        {job.depends_on.length > 0 && <Fact name="Depends on">{job.depends_on.join(", ")}</Fact>}
      </dl>
      {job.command && (
        <section>
          <h3>Command</h3>
          <pre className="command">{job.command.trimEnd()}</pre>
        </section>
      )}
      <Values title="Inputs" values={given} />
      <Values title="Outputs" values={plain ? { result: job.output } : job.outputs} />
      <LogView workflow={run.workflow_id} run={run.id} job={job} />
    </aside>
  );
});

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
