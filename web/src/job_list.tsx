// The list of jobs: navigation by keyboard and screen reader, and search in a large run.

import { type KeyboardEvent, memo, useMemo, useRef, useState } from "react";
import type { FlowJob } from "./api.ts";
import type { Critical } from "./critical_path.ts";
import { Elapsed } from "./elapsed.tsx";
import { StatusIcon } from "./status.tsx";

interface Props {
  jobs: FlowJob[];
  critical: Critical;
  chosen: string;
  onChoose: (job: string) => void;
}

/** With more jobs than this, the list has a search field. */
const MANY = 12;

export function JobList({ jobs, critical, chosen, onChoose }: Props) {
  const [wanted, setWanted] = useState("");
  const list = useRef<HTMLUListElement>(null);
  const shown = useMemo(() => {
    const query = wanted.trim().toLowerCase();
    return query ? jobs.filter((job) => `${job.id} ${job.name} ${job.status}`.toLowerCase().includes(query)) : jobs;
  }, [jobs, wanted]);
  // The list is one Tab stop; arrow keys move within it (roving tabindex).
  const stop = shown.some((job) => job.id === chosen) ? chosen : (shown[0]?.id ?? "");
  const move = (event: KeyboardEvent) => {
    const buttons = [...(list.current?.querySelectorAll("button") ?? [])];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    buttons[Math.max(0, Math.min(to, buttons.length - 1))]?.focus();
  };
  return (
    <section className="jobs" aria-label="Jobs">
      {jobs.length > MANY && (
        <input
          type="search"
          aria-label="Find jobs by name or status"
          placeholder="Name or status"
          value={wanted}
          onChange={(event) => setWanted(event.target.value)}
        />
      )}
      <ul ref={list} onKeyDown={move}>
        {shown.map((job) => (
          <Row
            key={job.id}
            job={job}
            critical={critical.has(job.id)}
            chosen={job.id === chosen}
            stop={job.id === stop}
            onChoose={onChoose}
          />
        ))}
      </ul>
      {!shown.length && <p className="faint pad">No matching jobs.</p>}
    </section>
  );
}

interface RowProps {
  job: FlowJob;
  critical: boolean;
  chosen: boolean;
  stop: boolean;
  onChoose: (job: string) => void;
}

const Row = memo(function Row({ job, critical, chosen, stop, onChoose }: RowProps) {
  return (
    <li>
      <button
        type="button"
        tabIndex={stop ? 0 : -1}
        aria-current={chosen ? "true" : undefined}
        onClick={() => onChoose(job.id)}
      >
        <StatusIcon status={job.status} />
        <span className="name">{job.name}</span>
        <span className="unseen">
          , {job.status}
          {critical && ", on the critical path"},{" "}
        </span>
        <span className="time">
          <Elapsed started={job.started_at} milliseconds={job.duration_ms} running={job.status === "running"} />
        </span>
      </button>
    </li>
  );
});
