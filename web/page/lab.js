// The laboratory in its worker, as functions that return promises.

/** A laboratory of its own: the capture and the conversation have one each. */
export class Lab {
  #worker = null;
  #waiting = new Map();
  #last = 0;

  /** Sends a request. `opened` is a file to read, `progress` is called with 0 to 1. */
  async #send(request, opened, progress) {
    if (this.#worker === null) {
      this.#worker = new Worker("worker.js", { type: "module" });
      this.#worker.onmessage = ({ data }) => this.#answered(data);
      this.#worker.onerror = (e) => this.#end(e.message || "the worker cannot be started");
    }
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject, progress });
      this.#worker.postMessage({ id, request, opened });
    });
  }

  #answered({ id, answer, progress, failed }) {
    const waiting = this.#waiting.get(id);
    if (waiting === undefined) return;
    if (progress !== undefined) return waiting.progress?.(progress);
    this.#waiting.delete(id);
    if (failed === undefined) return waiting.resolve(answer);
    // After a trap nothing in the worker can be relied on.
    waiting.reject(new Error(failed));
    this.#end(failed);
  }

  #end(why) {
    this.#worker?.terminate();
    this.#worker = null;
    for (const { reject } of this.#waiting.values()) reject(new Error(why));
    this.#waiting.clear();
  }

  /** Ends what is running, and forgets everything. */
  cancel() {
    this.#end("cancelled");
  }

  /** The bytes of an answer. */
  bytes(request) {
    return this.#send(request);
  }

  /** The text of an answer. */
  async text(request) {
    return new TextDecoder().decode(await this.#send(request));
  }

  /** The answer as an object. */
  async ask(request, opened, progress) {
    return JSON.parse(new TextDecoder().decode(await this.#send(request, opened, progress)));
  }
}
