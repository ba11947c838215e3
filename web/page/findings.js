// The analyst's findings, by kind, with what usually causes them.

import { button, copy, hex, make, t } from "./dom.js";

/** Findings of one kind that are shown before one asks for more. */
const PART = 20;

/** Makes the list of findings of a report. `go` is called with the number of a frame. */
export function drawFindings(report, go) {
  const nothing = report.error !== null || report.frames === 0;
  if (report.kinds.length === 0) return make("p", { class: nothing ? "quiet" : "good" }, t(nothing ? "nothing_checked" : "no_findings"));
  // The most severe kinds come first.
  const cards = report.kinds.map((tally) => {
    const all = report.findings.filter((it) => it.kind === tally.kind);
    return card(tally, all, report.explained.find((it) => it.kind === tally.kind), go);
  });
  const more = report.more_findings > 0 ? make("p", {}, t("more_findings", report.more_findings)) : null;
  return make("div", { class: "cards" }, ...cards, more);
}

const times = (count) => (count > 1 ? make("span", { class: "count" }, `×${count.toLocaleString()}`) : null);

function card({ kind, severity, count }, all, explained, go) {
  const head = make(
    "h3",
    {},
    make("span", { class: `severity ${severity}` }, t(`severity_${severity}`)),
    make("span", { class: "kind" }, explained?.title ?? kind),
    make("code", {}, kind),
    times(count),
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
  const frames = it.frames.map((frame) => button(String(frame), () => go(frame), { class: "frame", "aria-label": t("go_frame", frame) }));
  const again = it.packets > 0 ? ` ${t("packets_again", it.packets)}` : "";
  return make(
    "li",
    {},
    make("p", {}, it.text + again),
    make("p", { class: "where" }, `${it.from} → ${it.to} `, make("code", {}, `QP ${hex(it.dest_qp)}`), " ", make("code", {}, `PSN ${hex(it.psn)}`), ` · ${t(`confidence_${it.confidence}`)} · ${it.rule}`),
    make("p", { class: "frames" }, t("frames"), " ", ...frames, times(it.count), button(t("copy"), () => copy(asText(it)), { class: "plain" })),
  );
}

/** A time as the command prints it. */
function spent(seconds) {
  const nanos = Math.round(seconds * 1e9);
  if (nanos < 10_000) return `${(seconds * 1e6).toFixed(1)} us`;
  if (nanos < 1_000_000) return `${(seconds * 1e6).toFixed(0)} us`;
  return nanos < 1e9 ? `${(seconds * 1e3).toFixed(1)} ms` : `${seconds.toFixed(2)} s`;
}

/** A finding as the command prints it. */
export function asText(it) {
  const frames = it.frames.length === 1 ? "frame" : "frames";
  const often = it.count > 1 ? `${it.count} times in ${spent(it.last_seconds - it.first_seconds)}; first ` : "";
  const again = it.packets === 0 ? "" : it.packets === 1 ? " 1 packet." : ` ${it.packets} packets.`;
  return `${it.severity}: ${it.kind}, ${it.confidence}; ${often}${frames} ${it.frames.join(", ")}\n  ${it.from} > ${it.to} ${hex(it.dest_qp)}, PSN ${hex(it.psn)}\n  ${it.text}${again} [${it.rule}]\n`;
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
