// The server's clock, a second at a time. Browsers' clocks differ from it; one subscription serves all who look.

import { useSyncExternalStore } from "react";

let skew = 0;
let shown = Date.now();
let timer: ReturnType<typeof setInterval> | null = null;
const watchers = new Set<() => void>();

/** The server said what it is there. */
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

/** Draws whoever uses it again each second. */
export const useNow = (): number => Math.max(useSyncExternalStore(subscribe, () => shown), 0);
