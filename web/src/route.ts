// The route of the page, in the URL's fragment, which the browser never sends: #/runs/<run>/<job>.

import { useMemo, useSyncExternalStore } from "react";

export interface Route {
  run: string;
  job: string;
}

export const hrefFor = (run: string, job = ""): string =>
  `#/runs/${encodeURIComponent(run)}${job && `/${encodeURIComponent(job)}`}`;

export function parseRoute(hash: string): Route {
  const [page, run = "", job = ""] = hash.replace(/^#\/?/, "").split("/");
  try {
    if (page === "runs") return { run: decodeURIComponent(run), job: decodeURIComponent(job) };
  } catch {
    // A malformed percent-encoding: show the list of runs.
  }
  return { run: "", job: "" };
}

function subscribe(changed: () => void): () => void {
  window.addEventListener("hashchange", changed);
  return () => window.removeEventListener("hashchange", changed);
}

export function useRoute(): Route {
  const hash = useSyncExternalStore(subscribe, () => location.hash);
  return useMemo(() => parseRoute(hash), [hash]);
}

/** Shows another job of the run. It replaces the history entry, so that Back leads to the list of runs. */
export function show(run: string, job: string): void {
  history.replaceState(null, "", hrefFor(run, job));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
