// The DAG of a run. The layout is computed once per graph structure; status changes only re-render nodes.

import { Background, Controls, type Edge, ReactFlow, useReactFlow } from "@xyflow/react";
import { useEffect, useMemo, useRef, useState } from "react";
import type { FlowJob } from "./api.ts";
import type { Critical } from "./critical_path.ts";
import { EdgeLayer } from "./edge_layer.tsx";
import { GraphNode, type JobNode } from "./graph_node.tsx";
import { HEIGHT, layOut, type Positions, shapeOf, WIDTH } from "./layout.ts";

interface Props {
  jobs: FlowJob[];
  critical: Critical;
  chosen: string;
  onChoose: (job: string) => void;
}

const TYPES = { job: GraphNode };
const FIT = { padding: 0.1, maxZoom: 1 };
/** For more jobs than this, only visible nodes are rendered and one SVG draws all edges; for fewer, that costs more. */
const MANY = 150;
const NO_JOBS: FlowJob[] = [];

export default function Graph({ jobs, critical, chosen, onChoose }: Props) {
  const shape = useMemo(() => shapeOf(jobs), [jobs]);
  const [layout, setLayout] = useState<{ shape: string; positions: Positions } | null>(null);
  const [problem, setProblem] = useState(false);
  const latest = useRef(jobs);
  latest.current = jobs;
  useEffect(() => {
    let wanted = true;
    layOut(latest.current).then(
      (found) => wanted && setLayout({ shape, positions: found }),
      () => wanted && setProblem(true),
    );
    return () => {
      wanted = false;
    };
  }, [shape]);

  const nodes = useNodes(jobs, layout?.positions ?? null, critical, chosen, onChoose);
  const many = jobs.length > MANY;
  const edges = useEdges(many ? NO_JOBS : jobs, critical);
  if (problem) return <p role="alert">The graph layout failed. The list shows all jobs.</p>;
  if (!layout) return <p className="faint pad">Computing the layout…</p>;
  return (
    <ReactFlow
      key={layout.shape}
      nodes={nodes}
      edges={edges}
      nodeTypes={TYPES}
      fitView
      fitViewOptions={FIT}
      minZoom={0.05}
      maxZoom={2}
      onlyRenderVisibleElements={many}
      nodesDraggable={false}
      nodesConnectable={false}
      nodesFocusable={false}
      edgesFocusable={false}
      elementsSelectable={false}
      disableKeyboardA11y
      onMoveStart={() => mark(true)}
      onMoveEnd={() => mark(false)}
    >
      <Background gap={24} />
      <Controls showInteractive={false} />
      {many && <EdgeLayer jobs={jobs} positions={layout.positions} critical={critical} />}
      <Camera chosen={chosen} many={many} />
    </ReactFlow>
  );
}

/** Sets a CSS class while the user moves the graph: the browser then shifts a cached layer, and redraws it sharply when
 * the movement ends. It bypasses React to avoid a render. */
function mark(moving: boolean): void {
  document.querySelector(".react-flow")?.classList.toggle("moving", moving);
}

/** Adjusts the viewport: fits a small graph when the panel opens or closes, centres the chosen job of a large one. */
function Camera({ chosen, many }: { chosen: string; many: boolean }) {
  const { fitView } = useReactFlow();
  const target = many ? chosen : String(chosen !== "");
  const before = useRef(target);
  useEffect(() => {
    if (before.current === target) return;
    before.current = target;
    if (many && !target) return;
    // The size of the viewport changes only after the panel has been rendered.
    const timer = setTimeout(() => {
      void fitView(many ? { nodes: [{ id: target }], maxZoom: 0.8, duration: 200 } : { ...FIT, duration: 200 });
    }, 50);
    return () => clearTimeout(timer);
  }, [target, many, fitView]);
  return null;
}

/** Reuses the node object of an unchanged job, so that React re-renders only changed ones. */
function useNodes(
  jobs: FlowJob[],
  positions: Positions | null,
  critical: Critical,
  chosen: string,
  onChoose: (job: string) => void,
): JobNode[] {
  const kept = useRef(new Map<string, JobNode>());
  return useMemo(() => {
    if (!positions) return [];
    const made = new Map<string, JobNode>();
    for (const job of jobs) {
      const position = positions.get(job.id);
      if (!position) continue;
      const data = { job, critical: critical.has(job.id), chosen: job.id === chosen, onChoose };
      const old = kept.current.get(job.id);
      const same =
        old?.data.job === job &&
        old.position === position &&
        old.data.critical === data.critical &&
        old.data.chosen === data.chosen;
      made.set(job.id, same ? old : { id: job.id, type: "job", position, data, width: WIDTH, height: HEIGHT });
    }
    kept.current = made;
    return [...made.values()];
  }, [jobs, positions, critical, chosen, onChoose]);
}

function useEdges(jobs: FlowJob[], critical: Critical): Edge[] {
  const kept = useRef(new Map<string, Edge>());
  return useMemo(() => {
    const status = new Map(jobs.map((job) => [job.id, job.status]));
    const made = new Map<string, Edge>();
    for (const job of jobs) {
      for (const before of job.depends_on) {
        if (!status.has(before)) continue;
        const names = [critical.get(job.id) === before && "critical", job.status].filter(Boolean);
        const className = names.join(" ");
        const id = JSON.stringify([before, job.id]);
        const old = kept.current.get(id);
        made.set(id, old?.className === className ? old : { id, source: before, target: job.id, className });
      }
    }
    kept.current = made;
    return [...made.values()];
  }, [jobs, critical]);
}
