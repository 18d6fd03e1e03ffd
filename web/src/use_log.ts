import { useEffect, useRef, useState } from "react";
import { type LogChunk, paths } from "./api.ts";
import { useErrorMessage } from "./auth_context.ts";
import { follow } from "./follow.ts";

/** Older chunks are dropped, to bound the memory of the page. */
const MAX_CHUNKS = 5000;
/** The sequence number before the first chunk, which has 0. */
const NONE = -1;

export interface Log {
  chunks: LogChunk[];
  /** The number of dropped chunks, which came before `chunks`. */
  dropped: number;
  /** Whether more chunks may arrive. */
  open: boolean;
  problem: string;
}

const EMPTY: Log = { chunks: [], dropped: 0, open: false, problem: "" };

/**
 * The live log of a job, by its name in the run; it joins the logs of all jobs of its chain. `job` is "" until the job is
 * enqueued. `turn` changes when a finished job runs again: the hook then continues after the last chunk that it received.
 */
export function useLog(workflow: string, run: string, job: string, turn: string): Log {
  const [log, setLog] = useState(EMPTY);
  const last = useRef({ run: "", job: "", sequence: NONE });
  const describe = useErrorMessage();
  useEffect(() => {
    if (!job) return;
    if (last.current.run !== run || last.current.job !== job) {
      last.current = { run, job, sequence: NONE };
      setLog(EMPTY);
    }
    const position = last.current;
    const end = new AbortController();
    const { signal } = end;
    setLog((before) => ({ ...before, open: true, problem: "" }));
    const onEvents = (events: LogChunk[]) => {
      const fresh = events.filter((chunk) => chunk.sequence > position.sequence);
      position.sequence = fresh.at(-1)?.sequence ?? position.sequence;
      setLog((before) => {
        const all = [...before.chunks, ...fresh];
        const surplus = Math.max(0, all.length - MAX_CHUNKS);
        return { ...before, chunks: surplus ? all.slice(surplus) : all, dropped: before.dropped + surplus };
      });
    };
    const from = position.sequence > NONE ? { after: String(position.sequence) } : {};
    follow<LogChunk>({ path: paths.log(workflow, run, job), ...from, signal, onEvents })
      .catch((error: unknown) => {
        const problem = signal.aborted ? "" : describe(error);
        if (problem) setLog((before) => ({ ...before, problem }));
      })
      .finally(() => {
        if (!signal.aborted) setLog((before) => ({ ...before, open: false }));
      });
    return () => end.abort();
  }, [workflow, run, job, turn, describe]);
  return log;
}
