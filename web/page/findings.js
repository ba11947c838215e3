// The analyst's findings, by kind, with what usually causes them.

import { button, copy, hex, make, t } from "./dom.js";

/** Findings of one kind that are shown before one asks for more. */
const PART = 20;
/** Frames of a finding that are linked. */
const FRAMES = 12;

/** Makes the list of findings of a report. `go` is called with the number of a frame. */
export function drawFindings(report, go) {
  const kinds = new Map();
  for (const it of report.findings) {
    if (!kinds.has(it.kind)) kinds.set(it.kind, []);
    kinds.get(it.kind).push(it);
  }
  if (kinds.size === 0) return make("p", { class: "good" }, t(report.error ? "nothing_checked" : "no_findings"));
  const rank = { fault: 0, error: 0, warning: 1, note: 2 };
  const sorted = [...kinds].sort(([, a], [, b]) => rank[a[0].severity] - rank[b[0].severity]);
  const explained = new Map(report.explained.map((it) => [it.kind, it]));
  const cards = sorted.map(([kind, all]) => card(kind, all, explained.get(kind), go));
  const more = report.more_findings > 0 ? make("p", {}, t("more_findings", report.more_findings)) : null;
  return make("div", { class: "cards" }, ...cards, more);
}

function card(kind, all, explained, go) {
  const severity = all[0].severity;
  const head = make(
    "h3",
    {},
    make("span", { class: `severity ${severity}` }, t(`severity_${severity}`)),
    make("span", { class: "kind" }, explained?.title ?? kind),
    make("code", {}, kind),
    all.length > 1 ? make("span", { class: "count" }, `×${all.length}`) : null,
  );
  const list = make("ul", { class: "list" });
  const more = button(t("more"), () => add(), { class: "more" });
  let shown = 0;
  const add = () => {
    for (const it of all.slice(shown, shown + PART)) list.append(finding(it, go));
    shown = Math.min(shown + PART, all.length);
    more.hidden = shown === all.length;
  };
  add();
  return make("section", { class: `card ${severity}` }, head, list, more, explained ? causes(explained) : null);
}

function finding(it, go) {
  const frames = it.frames.slice(0, FRAMES).map((frame) => button(String(frame), () => go(frame), { class: "frame", "aria-label": t("go_frame", frame) }));
  const rest = it.frames.length > FRAMES ? t("and_more", it.frames.length - FRAMES) : null;
  const again = it.packets > 0 ? ` ${t("packets_again", it.packets)}` : "";
  return make(
    "li",
    {},
    make("p", {}, it.text + again),
    make("p", { class: "where" }, `${it.from} → ${it.to} `, make("code", {}, `QP ${hex(it.dest_qp)}`), " ", make("code", {}, `PSN ${hex(it.psn)}`), ` · ${t(`confidence_${it.confidence}`)} · ${it.rule}`),
    make("p", { class: "frames" }, t("frames"), " ", ...frames, rest, button(t("copy"), () => copy(asText(it)), { class: "plain" })),
  );
}

/** A finding as the command prints it. */
export function asText(it) {
  const frames = it.frames.length === 1 ? "frame" : "frames";
  const again = it.packets === 0 ? "" : it.packets === 1 ? " 1 packet." : ` ${it.packets} packets.`;
  return `${it.severity}: ${it.kind}, ${it.confidence}; ${frames} ${it.frames.join(", ")}\n  ${it.from} > ${it.to} ${hex(it.dest_qp)}, PSN ${hex(it.psn)}\n  ${it.text}${again} [${it.rule}]\n`;
}

function causes({ causes, remedies, more }) {
  const list = (title, items) => (items.length === 0 ? null : make("div", {}, make("h4", {}, title), make("ul", {}, ...items.map((text) => make("li", {}, text)))));
  const topic = more.replace("rxe explain ", "");
  return make(
    "details",
    { class: "causes" },
    make("summary", {}, t("causes")),
    list(t("causes"), causes),
    list(t("remedies"), remedies),
    make("p", {}, make("a", { href: `#explain/${encodeURIComponent(topic)}` }, t("explain_more"))),
  );
}
