// The edges of a graph as SVG paths, one path for all edges of the same style. A browser moves a few long paths at no
// cost; two thousand short ones slow down every frame. Pure: no clock, no network.

import type { FlowJob } from "./api.ts";
import type { Critical } from "./critical_path.ts";
import type { Positions, Point } from "./layout.ts";

type Shape = Pick<FlowJob, "id" | "depends_on" | "status">;
type Size = { width: number; height: number };

/** Returns the path of each CSS class. An edge has the status of the job that it leads to. */
export function edgePaths(jobs: readonly Shape[], positions: Positions, critical: Critical, box: Size): ReadonlyMap<string, string> {
  const found = new Map<string, string[]>();
  for (const job of jobs) {
    const to = positions.get(job.id);
    if (!to) continue;
    for (const before of job.depends_on) {
      const from = positions.get(before);
      if (!from) continue;
      const kind = critical.get(job.id) === before ? `critical ${job.status}` : job.status;
      const known = found.get(kind) ?? [];
      known.push(curve(from, to, box));
      found.set(kind, known);
    }
  }
  return new Map([...found].map(([kind, paths]) => [kind, paths.join("")]));
}

/** A curve from the middle of a node's right side to the middle of another's left side. */
function curve(from: Point, to: Point, box: Size): string {
  const [x, y, end, down] = [from.x + box.width, from.y + box.height / 2, to.x, to.y + box.height / 2].map(Math.round);
  const away = Math.round(Math.max(Math.abs((end ?? 0) - (x ?? 0)) / 2, 20));
  return `M${x} ${y}C${(x ?? 0) + away} ${y} ${(end ?? 0) - away} ${down} ${end} ${down}`;
}
