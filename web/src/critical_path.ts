// The critical path of a run. It is found backwards: from the job that finished last to the dependency that finished
// last, and so on.

import type { FlowJob } from "./api.ts";

type Timed = Pick<FlowJob, "id" | "depends_on" | "started_at" | "finished_at">;

/** Jobs on the critical path, the last one first, each with its predecessor on the path; "" for the first job. */
export type Critical = ReadonlyMap<string, string>;

/** `now`, in milliseconds, counts as the end of jobs that still run. */
export function criticalPath(jobs: readonly Timed[], now: number): Critical {
  const known = new Map(jobs.map((job) => [job.id, job]));
  const end = (job: Timed) => (job.started_at === null ? -1 : (job.finished_at ?? now));
  const latest = (ids: Iterable<string>) => {
    let found: Timed | null = null;
    for (const id of ids) {
      const job = known.get(id);
      if (job && end(job) >= 0 && (!found || end(job) > end(found))) found = job;
    }
    return found;
  };
  const path = new Map<string, string>();
  let job = latest(known.keys());
  while (job && !path.has(job.id)) {
    const before = latest(job.depends_on);
    path.set(job.id, before?.id ?? "");
    job = before;
  }
  return path;
}
