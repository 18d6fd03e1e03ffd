// The positions of the graph's nodes: ELK's layered layout in a web worker, so that the page never blocks.

import ELK, { type ElkNode } from "elkjs/lib/elk-api.js";
import workerUrl from "elkjs/lib/elk-worker.min.js?url";
import type { FlowJob } from "./api.ts";

export const WIDTH = 216;
export const HEIGHT = 56;
/** Above this many jobs the layout favours speed over quality. */
const LARGE = 300;

export interface Point {
  x: number;
  y: number;
}

export type Positions = ReadonlyMap<string, Point>;

type Shape = Pick<FlowJob, "id" | "depends_on">;

let elk: InstanceType<typeof ELK> | null = null;

/** A key that is equal for graphs with the same nodes and edges. */
export const shapeOf = (jobs: readonly Shape[]): string => JSON.stringify(jobs.map((job) => [job.id, job.depends_on]));

export async function layOut(jobs: readonly Shape[]): Promise<Positions> {
  elk ??= new ELK({ workerUrl });
  const known = new Set(jobs.map((job) => job.id));
  const graph: ElkNode = {
    id: "",
    layoutOptions: {
      "elk.algorithm": "layered",
      "elk.direction": "RIGHT",
      "elk.layered.spacing.nodeNodeBetweenLayers": "64",
      "elk.spacing.nodeNode": "20",
      "elk.layered.nodePlacement.strategy": "BRANDES_KOEPF",
      // Without it, a large graph is laid out along a diagonal.
      "elk.layered.nodePlacement.bk.fixedAlignment": "BALANCED",
      "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
      "elk.layered.thoroughness": jobs.length > LARGE ? "1" : "7",
    },
    // Job names are arbitrary: a prefix keeps node ids distinct from the ids of the root and of edges.
    children: jobs.map((job) => ({ id: `n${job.id}`, width: WIDTH, height: HEIGHT })),
    edges: jobs.flatMap((job) =>
      job.depends_on
        .filter((before) => known.has(before))
        .map((before) => ({ id: `e${JSON.stringify([before, job.id])}`, sources: [`n${before}`], targets: [`n${job.id}`] })),
    ),
  };
  const done = await elk.layout(graph);
  return new Map((done.children ?? []).map((node) => [node.id.slice(1), { x: node.x ?? 0, y: node.y ?? 0 }]));
}
