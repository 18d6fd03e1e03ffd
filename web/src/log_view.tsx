import { memo, useLayoutEffect, useRef } from "react";
import type { FlowJob, LogChunk } from "./api.ts";
import { shownPiece } from "./format.ts";
import { isOver } from "./run_state.ts";
import { useLog } from "./use_log.ts";

interface Props {
  workflow: string;
  run: string;
  job: FlowJob;
}

/** The live log of a job. It scrolls with new output unless the user has scrolled up. */
export function LogView({ workflow, run, job }: Props) {
  const log = useLog(workflow, run, job.uid && job.id, `${job.started_at} ${isOver(job.status)}`);
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [log.chunks]);
  const scrolled = () => {
    const { scrollTop = 0, scrollHeight = 0, clientHeight = 0 } = box.current ?? {};
    atEnd.current = scrollHeight - scrollTop - clientHeight < 24;
  };
  return (
    <section className="log">
      <h3>Log</h3>
      {log.problem && <p role="alert">{log.problem}</p>}
      {log.dropped > 0 && <p className="faint">The first {log.dropped} chunks are not shown; read them with the API.</p>}
      {/* aria-live off: a screen reader could not keep up with a log. */}
      <pre ref={box} onScroll={scrolled} tabIndex={0} role="log" aria-live="off" aria-label={`Log of ${job.name}`}>
        {log.chunks.map((chunk, at) => (
          <Piece key={chunk.sequence} chunk={chunk} next={log.chunks[at + 1]?.source ?? chunk.source} />
        ))}
        {!log.chunks.length && <span className="faint">{log.open || !job.uid ? "No output yet" : "No output"}</span>}
      </pre>
    </section>
  );
}

const Piece = memo(function Piece({ chunk, next }: { chunk: LogChunk; next: string }) {
  return <span className={chunk.stream === "stderr" ? "stderr" : undefined}>{shownPiece(chunk, next)}</span>;
});
