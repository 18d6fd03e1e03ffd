// Follows a stream of events for as long as it lasts, over any number of connections: each goes on behind the last
// event that came. By fetch, since EventSource sends no headers and a token belongs into no URL.

import { ask, Refusal } from "./api.ts";
import { SseParser } from "./sse_parser.ts";

/** The server says something every 15 s: after three silences the connection is dead. */
const SILENCE = 45_000;
const LONGEST_PAUSE = 10_000;
/** Events that come together are told together: one rendering for all. */
const GATHER = 100;

export interface Follower<T> {
  path: string;
  /** The id of the last event that is known already; "": none. */
  after?: string;
  signal: AbortSignal;
  onEvents: (events: T[]) => void;
  /** At each connection, before its first event. */
  onOpen?: () => void;
  /** Whether there is a connection now. */
  onLive?: (live: boolean) => void;
}

/** Ends when the server says that there is no more, or when it is aborted. Throws Refusal for what waiting cannot mend. */
export async function follow<T>(follower: Follower<T>): Promise<void> {
  let last = follower.after ?? "";
  let failures = 0;
  while (!follower.signal.aborted) {
    const parser = new SseParser();
    const watch = new Watch(follower.signal);
    const batch = new Batch<T>(follower.onEvents);
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (last) headers["last-event-id"] = last;
      const answer = await ask(follower.path, { headers, signal: watch.signal });
      failures = 0;
      follower.onLive?.(true);
      follower.onOpen?.();
      for await (const piece of pieces(answer)) {
        watch.alive();
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
      watch.close();
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

/** Aborts a connection that has gone silent, or that nobody wants any more. */
class Watch {
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
    this.#timer = window.setTimeout(this.#stop, SILENCE);
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#outer.removeEventListener("abort", this.#stop);
    this.#own.abort();
  }
}

class Batch<T> {
  readonly #tell: (events: T[]) => void;
  #events: T[] = [];
  #timer = 0;

  constructor(tell: (events: T[]) => void) {
    this.#tell = tell;
  }

  add(event: T): void {
    this.#events.push(event);
    if (!this.#timer) this.#timer = window.setTimeout(() => this.flush(), GATHER);
  }

  flush(): void {
    const events = this.#events;
    this.drop();
    if (events.length) this.#tell(events);
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
