import { useEffect, useState } from "react";
import { listRuns, paths, type RunEvent, type RunInfo, type RunStatus } from "./api.ts";
import { setClock } from "./clock.ts";
import { useErrorMessage } from "./auth_context.ts";
import { follow } from "./follow.ts";
import { ThrottledTask } from "./throttled_task.ts";

export interface Runs {
  /** null: not loaded yet. */
  runs: RunInfo[] | null;
  live: boolean;
  problem: string;
}

/** The newest runs, live: each event triggers a reload of the list. */
export function useRuns(limit: number, status: RunStatus | ""): Runs {
  const [runs, setRuns] = useState<RunInfo[] | null>(null);
  const [live, setLive] = useState(false);
  const [problem, setProblem] = useState("");
  const describe = useErrorMessage();
  useEffect(() => {
    const end = new AbortController();
    const { signal } = end;
    const load = async () => {
      try {
        const found = await listRuns(limit, status, signal);
        if (signal.aborted) return;
        const running = found.find((run) => run.status === "running" && run.started_at !== null);
        if (running?.started_at && running.duration_ms !== null) {
          setClock(running.started_at + running.duration_ms);
        }
        setRuns(found);
        setProblem("");
      } catch (error) {
        if (!signal.aborted) setProblem(describe(error));
      }
    };
    const refresh = new ThrottledTask(load, () => 1000);
    const options = { path: paths.events, signal, onLive: setLive, onOpen: () => refresh.schedule() };
    follow<RunEvent>({ ...options, onEvents: () => refresh.schedule() }).catch((error: unknown) => {
      if (!signal.aborted) setProblem(describe(error));
    });
    refresh.schedule();
    return () => {
      end.abort();
      refresh.close();
    };
  }, [limit, status, describe]);
  return { runs, live, problem };
}
