// Runs the laboratory beside the page, so that the page stays quick while a capture is read.
//
// The laboratory reads a capture through `read`, which is synchronous: a large file is never in
// memory as a whole, and progress is posted on the way. To cancel, the page ends the worker.

/** Bytes that are read from the file at once. */
const CHUNK = 4 << 20;

const files = new FileReaderSync();
let laboratory;
let file = null;
let position = 0;
let chunk = new Uint8Array(0);
let asked = 0;

function read(into, len) {
  if (file === null) return -1;
  try {
    if (chunk.length === 0 && position < file.size) {
      const part = file.slice(position, position + CHUNK);
      chunk = new Uint8Array(files.readAsArrayBuffer(part));
      position += chunk.length;
      postMessage({ id: asked, progress: position / file.size });
    }
    const got = Math.min(len >>> 0, chunk.length);
    // The memory may have grown since the last call, so its buffer is looked up anew.
    new Uint8Array(laboratory.memory.buffer, into >>> 0, got).set(chunk.subarray(0, got));
    chunk = chunk.subarray(got);
    return got;
  } catch {
    return -1;
  }
}

const started = (async () => {
  const answer = await fetch("rxe_web.wasm");
  if (!answer.ok) throw new Error(`rxe_web.wasm: ${answer.status}`);
  // Not every static server knows the type of WebAssembly, so streaming is not relied on.
  const { instance } = await WebAssembly.instantiate(await answer.arrayBuffer(), { page: { read } });
  laboratory = instance.exports;
})();

function call(request) {
  const bytes = new TextEncoder().encode(JSON.stringify(request));
  const at = laboratory.rxe_request(bytes.length) >>> 0;
  if (at === 0) throw new Error("the request is too long");
  new Uint8Array(laboratory.memory.buffer, at, bytes.length).set(bytes);
  const len = laboratory.rxe_call() >>> 0;
  const from = laboratory.rxe_answer() >>> 0;
  return new Uint8Array(laboratory.memory.buffer, from, len).slice();
}

onmessage = async ({ data: { id, request, opened } }) => {
  try {
    await started;
    asked = id;
    if (opened) [file, position, chunk] = [opened, 0, new Uint8Array(0)];
    const answer = call(request);
    postMessage({ id, answer }, [answer.buffer]);
  } catch (e) {
    postMessage({ id, failed: String(e.message ?? e) });
  }
};
