/** Calls that may be asked for at any rate and are made at most once per `pause`: the first at once, the last never lost. */
export class Paced {
  readonly #task: () => Promise<void>;
  readonly #pause: () => number;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #running = false;
  #again = false;
  #closed = false;

  constructor(task: () => Promise<void>, pause: () => number) {
    this.#task = task;
    this.#pause = pause;
  }

  ask(): void {
    if (this.#closed) return;
    if (this.#running || this.#timer !== null) this.#again = true;
    else void this.#run();
  }

  async #run(): Promise<void> {
    this.#running = true;
    this.#again = false;
    try {
      await this.#task();
    } finally {
      this.#running = false;
      if (!this.#closed) {
        this.#timer = setTimeout(() => {
          this.#timer = null;
          if (this.#again) void this.#run();
        }, this.#pause());
      }
    }
  }

  close(): void {
    this.#closed = true;
    if (this.#timer !== null) clearTimeout(this.#timer);
  }
}
