// Where we are, in the part of the address that never leaves the browser: #/runs/<run>/<job>.

import { useMemo, useSyncExternalStore } from "react";

export interface Place {
  run: string;
  job: string;
}

export const placeOf = (run: string, job = ""): string =>
  `#/runs/${encodeURIComponent(run)}${job && `/${encodeURIComponent(job)}`}`;

export function parsePlace(hash: string): Place {
  const [room, run = "", job = ""] = hash.replace(/^#\/?/, "").split("/");
  try {
    if (room === "runs") return { run: decodeURIComponent(run), job: decodeURIComponent(job) };
  } catch {
    // Not an address of ours.
  }
  return { run: "", job: "" };
}

function subscribe(changed: () => void): () => void {
  window.addEventListener("hashchange", changed);
  return () => window.removeEventListener("hashchange", changed);
}

export function useRoute(): Place {
  const hash = useSyncExternalStore(subscribe, () => location.hash);
  return useMemo(() => parsePlace(hash), [hash]);
}

/** Another job of the same run replaces the entry in the history: going back leads to the list of runs. */
export function show(run: string, job: string): void {
  history.replaceState(null, "", placeOf(run, job));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
