// The view in which a conversation is made: a scenario, and at once what becomes of it.

import { $, button, copy, failed, language, make, onLanguage, saveAs, t, toast } from "./dom.js";
import { drawFields } from "./fields.js";
import { drawFindings } from "./findings.js";
import { Lab } from "./lab.js";
import { drawLadder } from "./ladder.js";
import { fromHash, toHash } from "./share.js";

/** Scenarios that a learner begins with, in this order. */
const FIRST = ["rc_send", "rnr_nak", "psn_sequence_nak", "ack_lost", "timeout", "retry_exceeded", "rc_read", "rc_write", "rc_atomic", "write_wrong_rkey", "ud_send", "credits", "cnp"];
const FAULTS = ["lose", "delay", "duplicate", "damage", "mark"];
/** What the laboratory says of a packet that a fault has hit. Of a delay it says nothing. */
const HITS = { lose: "lost", duplicate: "duplicated", damage: "damaged", mark: "marked" };
/** Topics of the catalogue, by what the label of a row says. */
const TOPICS = [
  [/RNR NAK/, "rnr", "RNR NAK"],
  [/NAK: PSN/, "nak 0", "NAK"],
  [/NAK: invalid/, "nak 1", "NAK"],
  [/NAK: remote access/, "nak 2", "NAK"],
  [/NAK: remote op/, "nak 3", "NAK"],
  [/retransmitted/, "retransmission", "retransmission"],
  [/READ/, "read", "READ"],
  [/WRITE/, "write", "WRITE"],
  [/SEND/, "send", "SEND"],
  [/PSN/, "psn", "PSN"],
];

const lab = new Lab();
let scenarios = new Map();
let undo = [];
/** The part of the address that the text came from, and texts that were changed, by theirs. */
let place = "";
let drafts = new Map();
/** Texts made so far: an older answer is not drawn over a newer one. */
let asked = 0;
let last = null;

/** Makes the conversation of the text, and draws it. */
async function run() {
  const nth = ++asked;
  const text = $("text").value;
  gutter();
  const original = scenarios.get($("scenario").value);
  $("reset").disabled = text === original;
  keep(text === original ? null : text);
  const made = await lab.ask({ do: "make", text });
  if (nth !== asked) return;
  const { line, column, error } = made;
  const said = (it) => (it.line === undefined ? it.error : t("mistake", it.line, it.column, it.error));
  const mistakes = error === undefined ? made.outcome.warnings : [made];
  $("mistake").textContent = mistakes.map(said).join("\n");
  $("mistake").classList.toggle("warning", error === undefined);
  $("text").setAttribute("aria-invalid", String(error !== undefined));
  gutter(line);
  $("made").classList.toggle("old", error !== undefined);
  if (error !== undefined) return;
  last = made;
  await draw(nth);
}

async function draw(nth) {
  const { overview, outcome } = last;
  const [report] = JSON.parse(await lab.text({ do: "findings", lang: language() }));
  const ladders = [];
  for (const [at, names] of overview.ladders.entries()) {
    ladders.push(await drawLadder(lab, at, names, { faults: outcome.faults, open }));
  }
  if (nth !== asked) return;
  const hint = make("p", { class: "quiet" }, t("ladder_hint"));
  const findings = drawFindings(report, (frame) => toFrame(frame));
  const heading = (key) => make("h2", {}, t(key));
  $("made").replaceChildren(outcomes(outcome), heading("ladder"), hint, ...ladders, heading("findings"), findings);
}

/** What became of the queue pairs: their states, completions and what was not accepted. */
function outcomes({ states, completions, unaccepted }) {
  const of = (name) => [...completions, ...unaccepted].filter((it) => it.whose === name);
  const names = new Set([...Object.keys(states), ...completions.map((it) => it.whose), ...unaccepted.map((it) => it.whose)]);
  const count = (it) => make("li", { class: it.what === "success" ? "fine" : "wrong" }, `${it.count} × ${it.what}`);
  const cards = [...names].map((name) =>
    make("div", { class: "pair" }, make("b", {}, name), states[name] ? make("a", { class: `state ${states[name]}`, href: `#explain/${states[name]}` }, states[name]) : null, make("ul", {}, ...of(name).map(count))),
  );
  return make("div", { class: "pairs", role: "group", "aria-label": t("queue_pairs") }, ...cards);
}

/** What appears below a row of the ladder: faults for its packet, words to look up, all fields. */
function open(row) {
  const hit = last.outcome.faults[row.first] ?? [];
  const faults = FAULTS.map((fault) => button(t(`fault_${fault}`), () => add(row.first, fault), { title: t(`fault_${fault}_title`), disabled: hit.includes(HITS[fault]) }));
  const topic = TOPICS.filter(([said]) => said.test(row.label)).slice(0, 3);
  const links = topic.map(([, id, name]) => make("a", { href: `#explain/${encodeURIComponent(id)}` }, t("what_is", name)));
  const place = make("div", {});
  const fields = button(t("fields"), async () => {
    const shown = place.firstChild !== null;
    fields.setAttribute("aria-expanded", String(!shown));
    if (shown) return place.replaceChildren();
    const { place: index } = await lab.ask({ do: "place", frame: row.first });
    place.replaceChildren(await drawFields(lab, index));
  }, { "aria-expanded": "false" });
  const packet = row.kind !== "missing";
  return make("div", {}, make("div", { class: "bar tools" }, ...(packet ? [make("span", {}, t("this_packet")), ...faults, fields] : [])), make("p", { class: "links" }, ...links), place);
}

function toFrame(frame) {
  const rungs = [...$("made").querySelectorAll(".rung")];
  const rung = rungs.find((it) => Number(it.dataset.frame) === frame);
  if (rung === undefined) return;
  rung.scrollIntoView({ block: "center", behavior: "smooth" });
  const face = rung.querySelector(".face");
  face.focus({ preventScroll: true });
  if (face.getAttribute("aria-expanded") === "false") face.click();
}

/** Adds a fault for the packet of a frame to the text. */
async function add(frame, fault) {
  const { text, error } = await lab.ask({ do: "add_fault", text: $("text").value, frame, fault });
  if (error !== undefined) {
    $("mistake").textContent = error;
    return;
  }
  await change(text);
  // The diagram is drawn anew, so the row that had the focus is gone.
  $("made").querySelector(`.rung[data-frame="${frame}"] .face`)?.focus({ preventScroll: true });
  const hit = last.outcome.faults[frame] ?? [];
  if (fault === "delay") toast(t("fault_delay_title"));
  else if (hit.length === 0) toast(t("not_hit"));
}

/** Changes the text, so that it can be taken back. */
function change(text) {
  undo.push($("text").value);
  $("undo").disabled = false;
  $("text").value = text;
  return run().catch(failed);
}

/** Draws the numbers of the lines, and marks the one with a mistake. */
function gutter(wrong) {
  const lines = $("text").value.split("\n").length;
  const numbers = Array.from({ length: lines }, (_, at) => make("span", { class: at + 1 === wrong ? "wrong" : null }, `${at + 1}\n`));
  $("gutter").replaceChildren(...numbers);
  $("gutter").scrollTop = $("text").scrollTop;
}

/** Keeps a text that was changed, also while the page is loaded again. `null` forgets it. */
function keep(text) {
  if (text === null) drafts.delete(place);
  else drafts.set(place, text);
  try {
    sessionStorage.setItem("drafts", JSON.stringify([...drafts]));
  } catch {
    // They are kept until the page is left.
  }
}

/** Shows a scenario of the menu. */
export function chooseScenario(name) {
  show(`scenario/${name}`, name, scenarios.get(name));
}

/** Shows a scenario, or what became of its text. */
function show(from, name, text) {
  place = from;
  $("scenario").value = name;
  undo = [];
  $("undo").disabled = true;
  $("text").value = drafts.get(place) ?? text;
  about(text);
  run().catch(failed);
}

/** Shows what the scenario is about: its first comment, or the words of the page's language. */
function about(text) {
  const key = `about_${$("scenario").value}`;
  const comment = text.split("\n\n")[0].split("\n").filter((line) => line.startsWith("#"));
  $("about").textContent = t(key) === key ? comment.map((line) => line.replace(/^#\s*/, "")).join(" ") : t(key);
}

/** Shows the scenario that a link carries. What was changed since it was shown stays. */
export async function followLink(hash) {
  if (hash === place) return;
  const [kind, value] = [hash.slice(0, hash.indexOf("/")), hash.slice(hash.indexOf("/") + 1)];
  if (kind === "scenario" && scenarios.has(value)) return chooseScenario(value);
  const text = kind === "toml" ? await fromHash(value).catch(() => null) : null;
  if (text !== null) return show(hash, "", text);
  chooseScenario(FIRST[0]);
  $("about").textContent = t(kind === "toml" ? "bad_link" : "no_scenario", value);
}

function menu() {
  const option = (name) => make("option", { value: name }, t(`scenario_${name}`) === `scenario_${name}` ? name : t(`scenario_${name}`));
  const first = FIRST.filter((name) => scenarios.has(name));
  const was = $("scenario").value;
  const own = make("option", { value: "", hidden: true }, t("own_scenario"));
  const group = (label, names) => make("optgroup", { label }, ...names);
  const all = [...scenarios.keys()].map((name) => make("option", { value: name }, name));
  $("scenario").replaceChildren(own, group(t("begin_here"), first.map(option)), group(t("all_scenarios"), all));
  $("scenario").value = was;
}

/** Makes the view ready. */
export async function startConversation() {
  scenarios = new Map(Object.entries(await (await fetch("scenarios.json")).json()));
  try {
    drafts = new Map(JSON.parse(sessionStorage.getItem("drafts") ?? "[]"));
  } catch {
    // None was kept.
  }
  menu();
  let typing;
  $("text").addEventListener("input", () => {
    clearTimeout(typing);
    gutter();
    typing = setTimeout(() => run().catch(failed), 250);
  });
  $("text").addEventListener("scroll", () => ($("gutter").scrollTop = $("text").scrollTop));
  $("scenario").addEventListener("change", () => (location.hash = `scenario/${$("scenario").value}`));
  $("undo").addEventListener("click", () => {
    $("text").value = undo.pop();
    $("undo").disabled = undo.length === 0;
    run().catch(failed);
  });
  $("reset").addEventListener("click", () => scenarios.has($("scenario").value) && change(scenarios.get($("scenario").value)));
  $("link").addEventListener("click", async () => {
    const name = $("scenario").value;
    const same = scenarios.get(name) === $("text").value;
    const hash = same ? `scenario/${name}` : `toml/${await toHash($("text").value)}`;
    history.replaceState(null, "", `#${hash}`);
    place = hash;
    await copy(location.href);
  });
  $("save").addEventListener("click", async () => saveAs("conversation.pcap", await lab.bytes({ do: "file" }), "application/vnd.tcpdump.pcap"));
  onLanguage(() => {
    menu();
    if (scenarios.has($("scenario").value)) about(scenarios.get($("scenario").value));
    if (last !== null) draw(asked).catch(failed);
  });
}
