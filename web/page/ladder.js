// A sequence diagram: rows with an arrow between two lifelines.

import { button, make, t, time } from "./dom.js";

/** Rows that are drawn before one asks for more. */
const PART = 200;

/**
 * Draws a diagram. `faults` are the faults that hit frames, by frame; `open` makes what appears
 * below a row when it is chosen, or `choose` is called with the row.
 */
export async function drawLadder(lab, nth, names, { faults = {}, open, choose } = {}) {
  const list = make("ol", { class: "rungs" });
  const more = button(t("more"), () => add(), { class: "more" });
  let drawn = 0;
  let unfolded = null;
  const add = async () => {
    const part = await lab.ask({ do: "ladder", nth, from: drawn, count: PART });
    for (const row of part.rows) list.append(rung(row));
    drawn += part.rows.length;
    more.hidden = drawn >= part.total;
  };
  const toggle = (item, face, row) => {
    const was = unfolded;
    if (was !== null) {
      was.item.querySelector(".under").remove();
      was.face.setAttribute("aria-expanded", "false");
      unfolded = null;
      if (was.item === item) return;
    }
    item.append(make("div", { class: "under" }, open(row)));
    face.setAttribute("aria-expanded", "true");
    unfolded = { item, face };
  };
  const rung = (row) => {
    const way = row.to_right === null ? "both" : row.to_right ? "right" : "left";
    const hit = faults[row.first] ?? [];
    const lost = hit.includes("lost") ? " lost" : "";
    const item = make("li", { "data-frame": row.first, class: `rung ${row.kind} ${way}${row.packets > 1 ? " run" : ""}${lost}` });
    const chips = hit.map((name) => make("span", { class: "chip" }, t(`hit_${name}`)));
    const label = make("span", { class: "label" }, row.label, ...chips);
    if (row.kind === "comment") {
      item.append(make("span", { class: "time" }), make("span", { class: "lane" }, label));
      return item;
    }
    const arrow = way === "both" ? "↔" : way === "right" ? "→" : "←";
    const face = make(
      "button",
      { type: "button", class: "face", "aria-expanded": open ? "false" : null },
      make("span", { class: "time" }, time(row.seconds)),
      make("span", { class: "lane" }, make("span", { class: "spoken" }, arrow), label, make("span", { class: "shaft", "aria-hidden": "true" })),
    );
    face.addEventListener("click", () => (open ? toggle(item, face, row) : choose?.(row)));
    item.append(face);
    return item;
  };
  await add();
  const head = make("div", { class: "hosts" }, make("span", {}, names.left), make("span", {}, names.right));
  return make("div", { class: "ladder", role: "group", "aria-label": `${names.left} – ${names.right}` }, head, list, more);
}
