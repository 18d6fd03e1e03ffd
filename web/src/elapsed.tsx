import { useNow } from "./clock.ts";
import { duration } from "./format.ts";

interface Props {
  started: number | null;
  milliseconds: number | null;
  running: boolean;
}

/** A duration; for something that still runs, the time since it started. */
export function Elapsed({ started, milliseconds, running }: Props) {
  if (running && started !== null) return <Ticking started={started} />;
  return <>{milliseconds === null ? "–" : duration(milliseconds / 1000)}</>;
}

function Ticking({ started }: { started: number }) {
  const whole = Math.max(0, Math.floor((useNow() - started) / 1000));
  return <>{whole < 60 ? `${whole} s` : duration(whole)}</>;
}
