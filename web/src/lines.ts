// The edges of a graph as text for SVG: one path for all that look alike. A browser moves a few long lines at no cost, and
// two thousand short ones, each a picture of its own, at the cost of every frame. Pure: no clock, no network.

import type { FlowJob } from "./api.ts";
import type { Critical } from "./critical_path.ts";
import type { Places, Point } from "./layout.ts";

type Shape = Pick<FlowJob, "id" | "depends_on" | "status">;
type Size = { width: number; height: number };

/** By the classes of the edges: their path. An edge is of the status of the job that it leads to. */
export function lines(jobs: readonly Shape[], places: Places, critical: Critical, box: Size): ReadonlyMap<string, string> {
  const found = new Map<string, string[]>();
  for (const job of jobs) {
    const to = places.get(job.id);
    if (!to) continue;
    for (const before of job.depends_on) {
      const from = places.get(before);
      if (!from) continue;
      const kind = critical.get(job.id) === before ? `critical ${job.status}` : job.status;
      const known = found.get(kind) ?? [];
      known.push(curve(from, to, box));
      found.set(kind, known);
    }
  }
  return new Map([...found].map(([kind, paths]) => [kind, paths.join("")]));
}

/** From the middle of a box's right side to that of another's left. */
function curve(from: Point, to: Point, box: Size): string {
  const [x, y, end, down] = [from.x + box.width, from.y + box.height / 2, to.x, to.y + box.height / 2].map(Math.round);
  const away = Math.round(Math.max(Math.abs((end ?? 0) - (x ?? 0)) / 2, 20));
  return `M${x} ${y}C${(x ?? 0) + away} ${y} ${(end ?? 0) - away} ${down} ${end} ${down}`;
}
