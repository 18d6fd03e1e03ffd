import type { JobStatus } from "./api.ts";

/** Each status has its own icon, since colour alone is not accessible. */
const SIGNS: Record<JobStatus, string> = {
  queued: "M8 4.5V8l2.5 1.5",
  running: "M6.2 5v6l5-3z",
  success: "M4.8 8.3l2.2 2.2 4.2-4.6",
  failure: "M5.5 5.5l5 5m0-5l-5 5",
  cancelled: "M4.8 8h6.4",
  skipped: "M5 5l3 3-3 3m3.5-6l3 3-3 3",
};

export function StatusIcon({ status }: { status: JobStatus }) {
  return (
    <svg className={`sign ${status}`} viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <circle cx="8" cy="8" r="7.25" />
      <path d={SIGNS[status]} />
    </svg>
  );
}

export function Status({ status, note }: { status: JobStatus; note?: string }) {
  return (
    <span className={`status ${status}`}>
      <StatusIcon status={status} />
      {status}
      {note && <span className="note"> ({note})</span>}
    </span>
  );
}
