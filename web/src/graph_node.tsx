import { Handle, type Node, type NodeProps, Position } from "@xyflow/react";
import { memo } from "react";
import type { FlowJob } from "./api.ts";
import { Elapsed } from "./elapsed.tsx";
import { StatusIcon } from "./status.tsx";

export type JobNode = Node<{ job: FlowJob; critical: boolean; chosen: boolean; onChoose: (job: string) => void }, "job">;

/** One job in the graph. It is not a Tab stop: keyboard users reach all jobs through the list. */
export const GraphNode = memo(function GraphNode({ data }: NodeProps<JobNode>) {
  const { job, critical, chosen, onChoose } = data;
  const names = ["node", job.status, critical && "critical", chosen && "chosen"].filter(Boolean).join(" ");
  return (
    <>
      <Handle type="target" position={Position.Left} isConnectable={false} />
      <button type="button" tabIndex={-1} className={names} title={job.name} onClick={() => onChoose(job.id)}>
        <StatusIcon status={job.status} />
        <span className="name">{job.name}</span>
        <span className="time">
          {job.status}
          {job.started_at !== null && " · "}
          {job.started_at !== null && (
            <Elapsed started={job.started_at} milliseconds={job.duration_ms} running={job.status === "running"} />
          )}
          {job.attempt > 1 && ` · attempt ${job.attempt}`}
        </span>
      </button>
      <Handle type="source" position={Position.Right} isConnectable={false} />
    </>
  );
});
