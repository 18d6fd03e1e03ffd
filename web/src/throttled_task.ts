/**
 * Runs a task at most once per `pause`, however often it is scheduled: the first call runs at once, and the last one is
 * never lost.
 */
export class ThrottledTask {
  readonly #task: () => Promise<void>;
  readonly #pause: () => number;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #running = false;
  #pending = false;
  #closed = false;

  constructor(task: () => Promise<void>, pause: () => number) {
    this.#task = task;
    this.#pause = pause;
  }

  schedule(): void {
    if (this.#closed) return;
    if (this.#running || this.#timer !== null) this.#pending = true;
    else void this.#run();
  }

  async #run(): Promise<void> {
    this.#running = true;
    this.#pending = false;
    try {
      await this.#task();
    } finally {
      this.#running = false;
      if (!this.#closed) {
        this.#timer = setTimeout(() => {
          this.#timer = null;
          if (this.#pending) void this.#run();
        }, this.#pause());
      }
    }
  }

  close(): void {
    this.#closed = true;
    if (this.#timer !== null) clearTimeout(this.#timer);
  }
}
