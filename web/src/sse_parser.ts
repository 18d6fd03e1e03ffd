// An incremental parser of server-sent events: the input may be split at any position.

export interface SseEvent {
  id: string;
  event: string;
  data: string;
}

export class SseParser {
  /** The reconnection delay that the server requests, in milliseconds. */
  retry = 1000;
  #rest = "";
  #id = "";
  #event = "";
  #data: string[] = [];

  /** Parses the next chunk and returns the events that it completes. */
  push(piece: string): SseEvent[] {
    const lines = (this.#rest + piece).split("\n");
    this.#rest = lines.pop() ?? "";
    const found: SseEvent[] = [];
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") {
        if (this.#data.length) found.push({ id: this.#id, event: this.#event || "message", data: this.#data.join("\n") });
        this.#event = "";
        this.#data = [];
      } else {
        this.#field(line);
      }
    }
    return found;
  }

  #field(line: string): void {
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment, which serves as keep-alive
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id") this.#id = value;
    else if (name === "retry" && /^\d+$/.test(value)) this.retry = Number(value);
  }
}
