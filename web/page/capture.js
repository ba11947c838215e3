// The view of a capture: dropped or chosen, read with progress, then findings, ladder and packets.

import { $, failed, language, make, onLanguage, saveAs, t, tabs } from "./dom.js";
import { drawFindings } from "./findings.js";
import { Lab } from "./lab.js";
import { drawLadder } from "./ladder.js";
import { Packets } from "./packets.js";

const lab = new Lab();
let overview = null;
let packets = null;
let view = () => {};
/** Captures that were opened so far: an older one is not drawn over a newer one. */
let opened = 0;

function show(part) {
  for (const id of ["drop", "reading", "read"]) $(id).hidden = id !== part;
}

/** Reads a capture and shows it. */
export async function openCapture(file) {
  const nth = ++opened;
  lab.cancel();
  overview = null;
  $("reading-name").textContent = file.name;
  $("progress").value = 0;
  show("reading");
  try {
    const answer = await lab.ask({ do: "open", name: file.name }, file, (at) => ($("progress").value = at));
    if (nth !== opened) return;
    overview = answer;
    show("read");
    await draw();
    view(overview.findings > 0 || overview.packets === 0 ? "findings" : "ladder");
    $("name").focus();
  } catch (e) {
    if (nth !== opened) return;
    show("drop");
    if (e.message !== "cancelled") failed(e);
  }
}

/** The report of the open capture, exactly as `rxe check --json` prints it. */
export const report = () => lab.text({ do: "findings", lang: language() });

async function draw() {
  $("name").textContent = overview.name;
  $("summary").textContent = overview.summary;
  $("error").textContent = overview.error ?? "";
  $("error").hidden = overview.error === null;
  $("view-findings").querySelector(".count").textContent = overview.findings.toLocaleString();
  $("view-packets").querySelector(".count").textContent = overview.packets.toLocaleString();
  $("findings").replaceChildren(drawFindings(JSON.parse(await report())[0], go));
  packets = new Packets(lab, $("packets"));
  await packets.start();
  await drawLadders();
}

async function drawLadders() {
  const { ladders, ladders_left_out } = overview;
  const shown = make("div", {});
  const choose = async (nth) => shown.replaceChildren(await drawLadder(lab, nth, ladders[nth], { choose: (row) => go(row.first) }));
  const which = make("select", { id: "pair", onchange: () => choose(Number(which.value)) }, ...ladders.map((it, nth) => make("option", { value: nth }, `${it.left} – ${it.right} (${it.rows})`)));
  const bar = make("div", { class: "bar", hidden: ladders.length < 2 }, make("label", { for: "pair" }, t("pair")), which);
  const left = ladders_left_out > 0 ? make("p", { class: "quiet" }, t("ladders_left_out", ladders_left_out)) : null;
  $("ladder").replaceChildren(bar, shown, left ?? "");
  if (ladders.length > 0) await choose(0);
  else shown.append(make("p", { class: "quiet" }, t("no_ladder")));
}

/** Leads to a frame in the list of packets. */
async function go(frame) {
  view("packets");
  await packets.go(frame);
}

async function example() {
  const answer = await fetch("example.pcap");
  await openCapture(new File([await answer.arrayBuffer()], "example.pcap"));
}

/** Makes the view ready. `choose` shows it. */
export function startCapture(choose) {
  view = tabs($("views"), (id) => id === "packets" && packets?.shown());
  view("findings");
  $("choose").addEventListener("click", () => $("file").click());
  $("another").addEventListener("click", () => $("file").click());
  $("example").addEventListener("click", () => example().catch(failed));
  $("file").addEventListener("change", () => {
    const [file] = $("file").files;
    // Otherwise, choosing the same file again changes nothing.
    $("file").value = "";
    if (file) openCapture(file);
  });
  $("cancel").addEventListener("click", () => {
    lab.cancel();
    show("drop");
    $("choose").focus();
  });
  $("report").addEventListener("click", async () => saveAs(`${overview.name}.json`, await report(), "application/json"));
  let over = 0;
  const dragging = (by) => document.body.classList.toggle("dragging", (over += by) > 0);
  addEventListener("dragenter", () => dragging(1));
  addEventListener("dragleave", () => dragging(-1));
  addEventListener("dragover", (e) => e.preventDefault());
  addEventListener("drop", (e) => {
    e.preventDefault();
    over = 0;
    dragging(0);
    const file = e.dataTransfer.files[0];
    if (!file) return;
    choose("capture");
    openCapture(file);
  });
  onLanguage(() => overview !== null && draw().catch(failed));
}

/** Opens the example, as a link to it asks. */
export const openExample = () => example().catch(failed);
