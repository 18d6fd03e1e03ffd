// The server's clock, updated every second. The browser's clock may be wrong, so it is corrected by its difference from
// the server's. One timer serves all components.

import { useSyncExternalStore } from "react";

let skew = 0;
let shown = Date.now();
let timer: ReturnType<typeof setInterval> | null = null;
const watchers = new Set<() => void>();

/** Sets the skew from a current time of the server. */
export function setClock(milliseconds: number): void {
  skew = milliseconds - Date.now();
}

export const serverNow = (): number => Date.now() + skew;

function subscribe(changed: () => void): () => void {
  watchers.add(changed);
  timer ??= setInterval(() => {
    shown = serverNow();
    for (const watcher of watchers) watcher();
  }, 1000);
  return () => {
    watchers.delete(changed);
    if (!watchers.size && timer !== null) {
      clearInterval(timer);
      timer = null;
    }
  };
}

/** The server's time; re-renders the component each second. */
export const useNow = (): number => Math.max(useSyncExternalStore(subscribe, () => shown), 0);
