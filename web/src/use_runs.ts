import { useEffect, useState } from "react";
import { listRuns, paths, type RunEvent, type RunInfo, type RunStatus } from "./api.ts";
import { setClock } from "./clock.ts";
import { useTrouble } from "./door.ts";
import { follow } from "./follow.ts";
import { Paced } from "./paced.ts";

export interface Runs {
  /** null: not heard of yet. */
  runs: RunInfo[] | null;
  live: boolean;
  trouble: string;
}

/** The newest runs, as they are: events say that something changed, the list says what. */
export function useRuns(limit: number, status: RunStatus | ""): Runs {
  const [runs, setRuns] = useState<RunInfo[] | null>(null);
  const [live, setLive] = useState(false);
  const [trouble, setTrouble] = useState("");
  const say = useTrouble();
  useEffect(() => {
    const end = new AbortController();
    const { signal } = end;
    const look = async () => {
      try {
        const found = await listRuns(limit, status, signal);
        if (signal.aborted) return;
        const running = found.find((run) => run.status === "running" && run.started_at !== null);
        if (running?.started_at && running.duration_secs !== null) {
          setClock(running.started_at + running.duration_secs * 1000);
        }
        setRuns(found);
        setTrouble("");
      } catch (error) {
        if (!signal.aborted) setTrouble(say(error));
      }
    };
    const paced = new Paced(look, () => 1000);
    const options = { path: paths.events, signal, onLive: setLive, onOpen: () => paced.ask() };
    follow<RunEvent>({ ...options, onEvents: () => paced.ask() }).catch((error: unknown) => {
      if (!signal.aborted) setTrouble(say(error));
    });
    paced.ask();
    return () => {
      end.abort();
      paced.close();
    };
  }, [limit, status, say]);
  return { runs, live, trouble };
}
