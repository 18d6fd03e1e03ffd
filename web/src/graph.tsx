// The run's DAG. Boxes are laid out once for each shape; what changes while it runs is drawn in place.

import { Background, Controls, type Edge, ReactFlow, useReactFlow } from "@xyflow/react";
import { useEffect, useMemo, useRef, useState } from "react";
import type { FlowJob } from "./api.ts";
import type { Critical } from "./critical_path.ts";
import { EdgePicture } from "./edge_picture.tsx";
import { GraphNode, type JobNode } from "./graph_node.tsx";
import { HEIGHT, layOut, type Places, shapeOf, WIDTH } from "./layout.ts";

interface Props {
  jobs: FlowJob[];
  critical: Critical;
  chosen: string;
  onChoose: (job: string) => void;
}

const TYPES = { job: GraphNode };
const FIT = { padding: 0.1, maxZoom: 1 };
/** Below this many, drawing only what is seen costs more than it saves, and so does one picture of all edges. */
const MANY = 150;
const NO_JOBS: FlowJob[] = [];

export default function Graph({ jobs, critical, chosen, onChoose }: Props) {
  const shape = useMemo(() => shapeOf(jobs), [jobs]);
  const [places, setPlaces] = useState<{ shape: string; places: Places } | null>(null);
  const [trouble, setTrouble] = useState(false);
  const latest = useRef(jobs);
  latest.current = jobs;
  useEffect(() => {
    let wanted = true;
    layOut(latest.current).then(
      (found) => wanted && setPlaces({ shape, places: found }),
      () => wanted && setTrouble(true),
    );
    return () => {
      wanted = false;
    };
  }, [shape]);

  const nodes = useNodes(jobs, places?.places ?? null, critical, chosen, onChoose);
  const many = jobs.length > MANY;
  const edges = useEdges(many ? NO_JOBS : jobs, critical);
  if (trouble) return <p role="alert">The graph could not be laid out; the list has every job.</p>;
  if (!places) return <p className="faint pad">Laying out…</p>;
  return (
    <ReactFlow
      key={places.shape}
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
      {many && <EdgePicture jobs={jobs} places={places.places} critical={critical} />}
      <Camera chosen={chosen} many={many} />
    </ReactFlow>
  );
}

/** While the graph is moved the browser shifts one picture of it; at rest it draws it sharp. No rendering by React. */
function mark(moving: boolean): void {
  document.querySelector(".react-flow")?.classList.toggle("moving", moving);
}

/** Keeps what matters in sight: all of a small graph when the panel takes its room, the chosen job of a large one. */
function Camera({ chosen, many }: { chosen: string; many: boolean }) {
  const { fitView } = useReactFlow();
  const target = many ? chosen : String(chosen !== "");
  const before = useRef(target);
  useEffect(() => {
    if (before.current === target) return;
    before.current = target;
    if (many && !target) return;
    // The room is another one only once the panel has been drawn.
    const timer = setTimeout(() => {
      void fitView(many ? { nodes: [{ id: target }], maxZoom: 0.8, duration: 200 } : { ...FIT, duration: 200 });
    }, 50);
    return () => clearTimeout(timer);
  }, [target, many, fitView]);
  return null;
}

/** A job that is as it was keeps its node, so that React draws only those that changed. */
function useNodes(
  jobs: FlowJob[],
  places: Places | null,
  critical: Critical,
  chosen: string,
  onChoose: (job: string) => void,
): JobNode[] {
  const kept = useRef(new Map<string, JobNode>());
  return useMemo(() => {
    if (!places) return [];
    const made = new Map<string, JobNode>();
    for (const job of jobs) {
      const position = places.get(job.id);
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
  }, [jobs, places, critical, chosen, onChoose]);
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
