import { useCallback, useEffect, useState } from "react";
import { getRun, paths, Refusal, type RunDetail, type RunEvent } from "./api.ts";
import { setClock } from "./clock.ts";
import { useErrorMessage } from "./auth_context.ts";
import { follow } from "./follow.ts";
import { ThrottledTask } from "./throttled_task.ts";
import { applyEvents, isOver, mergeSnapshot, type RunState } from "./run_state.ts";

export interface WatchedRun {
  run: RunDetail | null;
  live: boolean;
  problem: string;
  /** Reads the run again and restarts the event stream; call it after a request that changes the run. */
  reload: () => void;
}

/** The pause between snapshots, longer for a large run; its events still arrive at once. */
const pause = (jobs: number): number => (jobs < 200 ? 500 : 3000);

const RETRY_PAUSE = 2000;

/** One run, live. Events update its jobs at once; a snapshot follows for what events lack (outputs, new jobs). */
export function useRun(id: string): WatchedRun {
  const [state, setState] = useState<RunState | null>(null);
  const [live, setLive] = useState(false);
  const [problem, setProblem] = useState("");
  const [round, setRound] = useState(0);
  const describe = useErrorMessage();
  useEffect(() => {
    const end = new AbortController();
    const { signal } = end;
    let latest: RunState | null = null;
    const set = (next: RunState) => {
      latest = next;
      setState(next);
      if (next.stale) refresh.schedule();
    };
    const load = async () => {
      try {
        const run = await getRun(id, signal);
        if (signal.aborted) return;
        if (run.started_at !== null && !isOver(run.status) && run.duration_ms !== null) {
          setClock(run.started_at + run.duration_ms);
        }
        const first = latest === null;
        set(mergeSnapshot(latest, run));
        setProblem("");
        if (first) watch(run.events);
      } catch (error) {
        if (signal.aborted) return;
        setProblem(describe(error));
        // A refusal is final; an unavailable server is retried.
        if (latest === null && !(error instanceof Refusal && error.status < 500)) refresh.schedule();
      }
    };
    const watch = (after: number) => {
      const onEvents = (events: RunEvent[]) => latest && set(applyEvents(latest, events));
      // Sequence numbers start at 1, so 0 is no valid event id.
      const from = after > 0 ? { after: String(after) } : {};
      let dropped = false;
      const onLive = (now: boolean) => {
        setLive(now);
        if (now && dropped) refresh.schedule();
        dropped = !now;
      };
      follow<RunEvent>({ path: paths.runEvents(id), ...from, signal, onEvents, onLive })
        .then(() => refresh.schedule())
        .catch((error: unknown) => {
          if (!signal.aborted) setProblem(describe(error));
        });
    };
    const refresh = new ThrottledTask(load, () => (latest ? pause(latest.run.jobs.length) : RETRY_PAUSE));
    refresh.schedule();
    return () => {
      end.abort();
      refresh.close();
    };
  }, [id, round, describe]);
  const reload = useCallback(() => setRound((count) => count + 1), []);
  return { run: state?.run ?? null, live, problem, reload };
}
