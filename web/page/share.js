// A text in a link: compressed, and in the letters that a link may have.

const through = async (bytes, stream) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());

/** The text as a part of a link. */
export async function toHash(text) {
  const bytes = await through(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
  const letters = btoa(String.fromCharCode(...bytes));
  return letters.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The text that a part of a link carries. */
export async function fromHash(hash) {
  const letters = atob(hash.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(letters, (c) => c.charCodeAt(0));
  return new TextDecoder().decode(await through(bytes, new DecompressionStream("deflate-raw")));
}
