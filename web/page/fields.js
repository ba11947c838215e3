// All fields of a packet, and its bytes. A field and its bytes are marked together.

import { make, t } from "./dom.js";

/** Makes the fields and bytes of the packet with this index. */
export async function drawFields(lab, index) {
  const it = await lab.ask({ do: "fields", index });
  if (it.error) return make("p", { class: "error" }, it.error);
  const bytes = [];
  const rows = [];
  const dump = make("div", { class: "bytes", "aria-label": t("bytes"), role: "img" });
  for (let at = 0; at < it.captured; at++) {
    const byte = make("span", {}, it.bytes.slice(2 * at, 2 * at + 2));
    bytes.push(byte);
    if (at % 8 === 0) dump.append(make("b", { class: at % 16 === 8 ? "half" : null }, at.toString(16).padStart(4, "0")));
    dump.append(byte);
  }
  const mark = (row, on) => {
    row.at.classList.toggle("on", on);
    for (const byte of bytes.slice(row.from, row.to)) byte.classList.toggle("on", on);
  };
  let kept = null;
  const show = (row, scrolls) => {
    if (kept !== null) mark(kept, false);
    kept = row;
    mark(kept, true);
    if (scrolls) bytes[row.from]?.scrollIntoView({ block: "nearest" });
  };
  const layers = it.layers.map((layer) => {
    const body = layer.fields.map((field) => {
      const end = field.at + field.length - 1;
      const place = end > field.at ? `${field.at}–${end}` : String(field.at);
      const at = make("tr", { tabindex: rows.length === 0 ? 0 : -1 }, make("td", { class: "place" }, place), make("th", { scope: "row" }, field.name), make("td", {}, field.text));
      const row = { at, from: field.at, to: end + 1 };
      rows.push(row);
      at.addEventListener("focus", () => show(row, true));
      at.addEventListener("pointerenter", () => show(row, false));
      return at;
    });
    return make("tbody", {}, make("tr", { class: "layer" }, make("th", { colspan: 3, scope: "colgroup" }, layer.name)), ...body);
  });
  // One stop of the Tab key; the arrow keys go from field to field.
  const step = (e) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    const next = rows[rows.findIndex((row) => row.at === document.activeElement) + by];
    if (by === undefined || next === undefined) return;
    e.preventDefault();
    document.activeElement.tabIndex = -1;
    next.at.tabIndex = 0;
    next.at.focus();
  };
  bytes.forEach((byte, at) => {
    // The innermost field that has the byte comes last.
    const row = rows.findLast((row) => row.from <= at && at < row.to);
    if (row) byte.addEventListener("pointerenter", () => show(row, false));
  });
  const cut = it.captured < it.length ? make("p", { class: "quiet" }, t("cut", it.captured, it.length)) : null;
  const comments = it.comments.map((text) => make("p", { class: "quiet" }, text));
  const table = make("table", { "aria-label": t("fields"), onkeydown: step }, ...layers);
  const scroll = make("div", { class: "scroll" }, table);
  // What RDMA adds to a frame begins with the BTH.
  const bth = layers.find((_, nth) => it.layers[nth].name === "BTH");
  if (bth) requestAnimationFrame(() => (scroll.scrollTop = bth.offsetTop));
  return make("div", { class: "fields" }, ...comments, cut, scroll, dump);
}
