// Follows a stream of server-sent events across reconnects: each connection continues after the last event received.
// It uses fetch, since EventSource cannot send headers and a token must not be in a URL.

import { Refusal, request } from "./api.ts";
import { SseParser } from "./sse_parser.ts";

/** The server sends a keep-alive every 15 s: after three missing ones the connection counts as dead. */
const SILENCE_LIMIT = 45_000;
const LONGEST_PAUSE = 10_000;
/** Events within this time are delivered together, so that React renders once. */
const BATCH_DELAY = 100;

export interface Follower<T> {
  path: string;
  /** The id of the last event that is already known; "": none. */
  after?: string;
  signal: AbortSignal;
  onEvents: (events: T[]) => void;
  /** Called for each connection, before its first event. */
  onOpen?: () => void;
  /** Called when the connection opens or closes. */
  onLive?: (live: boolean) => void;
}

/** Returns after the server's `end` event or an abort. Throws Refusal for an error that a retry cannot fix. */
export async function follow<T>(follower: Follower<T>): Promise<void> {
  let last = follower.after ?? "";
  let failures = 0;
  while (!follower.signal.aborted) {
    const parser = new SseParser();
    const watchdog = new Watchdog(follower.signal);
    const batch = new Batch<T>(follower.onEvents);
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (last) headers["last-event-id"] = last;
      const answer = await request(follower.path, { headers, signal: watchdog.signal });
      failures = 0;
      follower.onLive?.(true);
      follower.onOpen?.();
      for await (const piece of pieces(answer)) {
        watchdog.alive();
        for (const one of parser.push(piece)) {
          if (one.event === "end") return;
          if (one.id) last = one.id;
          batch.add(JSON.parse(one.data) as T);
        }
      }
    } catch (error) {
      if (error instanceof Refusal && error.status < 500 && error.status !== 429) throw error;
      failures += 1;
    } finally {
      watchdog.close();
      if (follower.signal.aborted) batch.drop();
      else batch.flush();
      if (!follower.signal.aborted) follower.onLive?.(false);
    }
    await pause(Math.min(parser.retry * 2 ** Math.min(failures, 5), LONGEST_PAUSE), follower.signal);
  }
}

async function* pieces(answer: Response): AsyncGenerator<string> {
  if (!answer.body) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** Aborts a connection that is silent for too long, or whose follower was aborted. */
class Watchdog {
  readonly #own = new AbortController();
  readonly #outer: AbortSignal;
  #timer = 0;

  constructor(outer: AbortSignal) {
    this.#outer = outer;
    outer.addEventListener("abort", this.#stop);
    this.alive();
  }

  get signal(): AbortSignal {
    return this.#own.signal;
  }

  #stop = () => this.#own.abort();

  alive(): void {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(this.#stop, SILENCE_LIMIT);
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#outer.removeEventListener("abort", this.#stop);
    this.#own.abort();
  }
}

class Batch<T> {
  readonly #deliver: (events: T[]) => void;
  #events: T[] = [];
  #timer = 0;

  constructor(deliver: (events: T[]) => void) {
    this.#deliver = deliver;
  }

  add(event: T): void {
    this.#events.push(event);
    if (!this.#timer) this.#timer = window.setTimeout(() => this.flush(), BATCH_DELAY);
  }

  flush(): void {
    const events = this.#events;
    this.drop();
    if (events.length) this.#deliver(events);
  }

  drop(): void {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#events = [];
  }
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", done);
  });
}
