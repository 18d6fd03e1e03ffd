import { useCallback, useEffect, useState } from "react";
import { getRun, paths, Refusal, type RunDetail, type RunEvent } from "./api.ts";
import { setClock } from "./clock.ts";
import { useTrouble } from "./door.ts";
import { follow } from "./follow.ts";
import { Paced } from "./paced.ts";
import { adopt, apply, isOver, type RunState } from "./run_state.ts";

export interface WatchedRun {
  run: RunDetail | null;
  live: boolean;
  trouble: string;
  /** Look again, and go on following: something was asked for. */
  again: () => void;
}

/** A large run is read whole less often; its events come all the same. */
const pause = (jobs: number): number => (jobs < 200 ? 500 : 3000);

const AWAY = 2000;

/** One run, live. Events move its jobs at once; what they do not tell (outputs, new jobs) is read behind them. */
export function useRun(id: string): WatchedRun {
  const [state, setState] = useState<RunState | null>(null);
  const [live, setLive] = useState(false);
  const [trouble, setTrouble] = useState("");
  const [round, setRound] = useState(0);
  const say = useTrouble();
  useEffect(() => {
    const end = new AbortController();
    const { signal } = end;
    let latest: RunState | null = null;
    const set = (next: RunState) => {
      latest = next;
      setState(next);
      if (next.stale) paced.ask();
    };
    const look = async () => {
      try {
        const run = await getRun(id, signal);
        if (signal.aborted) return;
        if (run.started_at !== null && !isOver(run.status) && run.duration_secs !== null) {
          setClock(run.started_at + run.duration_secs * 1000);
        }
        const first = latest === null;
        set(adopt(latest, run));
        setTrouble("");
        if (first) watch(run.events);
      } catch (error) {
        if (signal.aborted) return;
        setTrouble(say(error));
        // What was refused stays refused; a server that is away comes back.
        if (latest === null && !(error instanceof Refusal && error.status < 500)) paced.ask();
      }
    };
    const watch = (after: number) => {
      const onEvents = (events: RunEvent[]) => latest && set(apply(latest, events));
      // 0 has no meaning as an id: the first event is number 1.
      const from = after > 0 ? { after: String(after) } : {};
      let dropped = false;
      const onLive = (now: boolean) => {
        setLive(now);
        if (now && dropped) paced.ask();
        dropped = !now;
      };
      follow<RunEvent>({ path: paths.runEvents(id), ...from, signal, onEvents, onLive })
        .then(() => paced.ask())
        .catch((error: unknown) => {
          if (!signal.aborted) setTrouble(say(error));
        });
    };
    const paced = new Paced(look, () => (latest ? pause(latest.run.jobs.length) : AWAY));
    paced.ask();
    return () => {
      end.abort();
      paced.close();
    };
  }, [id, round, say]);
  const again = useCallback(() => setRound((count) => count + 1), []);
  return { run: state?.run ?? null, live, trouble, again };
}
