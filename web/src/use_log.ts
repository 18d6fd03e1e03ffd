import { useEffect, useRef, useState } from "react";
import { type LogChunk, paths } from "./api.ts";
import { useTrouble } from "./door.ts";
import { follow } from "./follow.ts";

/** Older chunks are let go: a browser need not hold what a disk does. */
const MOST = 5000;

export interface Log {
  chunks: LogChunk[];
  /** How many came before those. */
  dropped: number;
  /** Whether more may come. */
  open: boolean;
  trouble: string;
}

const NOTHING: Log = { chunks: [], dropped: 0, open: false, trouble: "" };

/**
 * A job's log as it grows, by its name in the run: what all said that it went on as, one after another. "": there is none
 * yet. `turn` changes when a job that had ended goes on: it is followed again, from where it was.
 */
export function useLog(workflow: string, run: string, job: string, turn: string): Log {
  const [log, setLog] = useState(NOTHING);
  const last = useRef({ run: "", job: "", sequence: 0 });
  const say = useTrouble();
  useEffect(() => {
    if (!job) return;
    if (last.current.run !== run || last.current.job !== job) {
      last.current = { run, job, sequence: 0 };
      setLog(NOTHING);
    }
    const place = last.current;
    const end = new AbortController();
    const { signal } = end;
    setLog((before) => ({ ...before, open: true, trouble: "" }));
    const onEvents = (events: LogChunk[]) => {
      const fresh = events.filter((chunk) => chunk.sequence > place.sequence);
      place.sequence = fresh.at(-1)?.sequence ?? place.sequence;
      setLog((before) => {
        const all = [...before.chunks, ...fresh];
        const surplus = Math.max(0, all.length - MOST);
        return { ...before, chunks: surplus ? all.slice(surplus) : all, dropped: before.dropped + surplus };
      });
    };
    const from = place.sequence > 0 ? { after: String(place.sequence) } : {};
    follow<LogChunk>({ path: paths.log(workflow, run, job), ...from, signal, onEvents })
      .catch((error: unknown) => {
        const trouble = signal.aborted ? "" : say(error);
        if (trouble) setLog((before) => ({ ...before, trouble }));
      })
      .finally(() => {
        if (!signal.aborted) setLog((before) => ({ ...before, open: false }));
      });
    return () => end.abort();
  }, [workflow, run, job, turn, say]);
  return log;
}
