// The list of packets, drawn only where it is looked at, and the fields of the chosen one.

import { failed, hex, make, t } from "./dom.js";
import { drawFields } from "./fields.js";

/** The height of a row in pixels, as in the style sheet. */
const ROW = 28;
/** The tallest list that browsers draw right, in pixels. */
const TALLEST = 8_000_000;
const FILTERS = ["qp", "opcode", "addr", "psn", "vni", "session"];

/** The list of packets of a laboratory, in this element. */
export class Packets {
  #lab;
  #filters = {};
  #total = 0;
  #from = -1;
  #asked = 0;
  /** The index of the chosen packet, and its place in the list. */
  #chosen = null;
  #at = -1;

  constructor(lab, place) {
    this.#lab = lab;
    this.inputs = new Map(FILTERS.map((name) => [name, this.#input(name)]));
    this.only = make("select", { id: "filter-only", onchange: () => this.#filter() });
    this.said = make("p", { class: "quiet", role: "status" });
    this.rows = make("tbody", {});
    const head = ["no", "seconds", "source", "destination", "qp", "psn", "opcode", "info"].map((key) => make("th", { role: "columnheader", class: key }, t(`col_${key}`)));
    this.rows.setAttribute("role", "rowgroup");
    this.table = make("table", { class: "packets", role: "none" }, make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...head)), this.rows);
    this.space = make("div", { class: "space" }, this.table);
    this.view = make("div", { class: "view", tabindex: 0, role: "grid", "aria-label": t("packets") }, this.space);
    this.view.addEventListener("scroll", () => this.#draw());
    this.view.addEventListener("keydown", (e) => this.#key(e));
    this.detail = make("div", { class: "detail" }, make("p", { class: "quiet" }, t("choose_packet")));
    const label = (name, input) => make("label", {}, make("span", {}, t(`filter_${name}`)), input);
    const form = make("form", { class: "filters", role: "search", onsubmit: (e) => e.preventDefault() }, ...[...this.inputs].map(([name, input]) => label(name, input)), label("only", this.only));
    place.replaceChildren(form, this.said, make("div", { class: "two" }, this.view, this.detail));
  }

  #input(name) {
    const hints = { qp: "0x11", opcode: "send", addr: "10.0.0.1", psn: "100-200", vni: "5001", session: "7" };
    return make("input", { id: `filter-${name}`, placeholder: hints[name], spellcheck: "false", autocomplete: "off", oninput: () => this.#filter() });
  }

  /** Shows all packets. */
  async start() {
    const kinds = await this.#lab.ask({ do: "kinds" });
    this.only.replaceChildren(make("option", { value: "" }, t("any")), ...kinds.map(([name, what]) => make("option", { value: name, title: what }, name)));
    await this.#filter();
  }

  async #filter() {
    this.#filters = { only: this.only.value };
    for (const [name, input] of this.inputs) this.#filters[name] = input.value;
    this.#from = -1;
    this.#at = -1;
    this.view.scrollTop = 0;
    await this.#draw();
  }

  /** The height of the list below its head, in pixels. */
  get #tall() {
    return Math.min(TALLEST, this.#total * ROW);
  }

  /** Whole rows that are visible at once. */
  get #visible() {
    return Math.max(1, Math.floor(this.view.clientHeight / ROW) - 1);
  }

  /** Rows a pixel of scrolling passes. A list that is too tall for the browser is scrolled faster. */
  get #speed() {
    const pixels = this.#tall - this.#visible * ROW;
    return pixels > 0 ? (this.#total - this.#visible) / pixels : 1 / ROW;
  }

  /** The first row that is visible. */
  #first() {
    return Math.floor(this.view.scrollTop * this.#speed + 0.01);
  }

  async #draw() {
    const count = Math.ceil(this.view.clientHeight / ROW) + 20;
    const first = this.#total > 0 ? this.#first() : 0;
    const from = Math.max(0, first - 10);
    // A list that is scrolled faster is drawn where it is looked at.
    const near = this.#tall < TALLEST ? 8 : 1;
    if (this.#from >= 0 && Math.abs(from - this.#from) < near) return;
    const asked = ++this.#asked;
    const page = await this.#lab.ask({ do: "packets", filters: this.#filters, from, count });
    if (asked !== this.#asked) return;
    for (const [name, input] of this.inputs) {
      input.setAttribute("aria-invalid", String(page.field === name));
    }
    this.said.classList.toggle("error", page.error !== undefined);
    if (page.error !== undefined) {
      this.said.textContent = page.error;
      return;
    }
    this.said.textContent = t("shown", page.total.toLocaleString());
    this.#total = page.total;
    this.#from = from;
    this.view.setAttribute("aria-rowcount", this.#total + 1);
    this.space.style.height = `${this.#tall + ROW}px`;
    const top = this.view.scrollTop - (this.#first() - from) * ROW;
    this.table.style.top = `${this.#tall < TALLEST ? from * ROW : Math.max(0, top)}px`;
    this.rows.replaceChildren(...page.rows.map((row, nth) => this.#line(row, from + nth)));
    this.#mark();
    this.#settle();
  }

  #line(row, at) {
    const cells = [
      ["no", row.segment === null ? row.frame : `${row.frame}.${row.segment}`],
      ["seconds", row.seconds.toFixed(6)],
      ["source", row.source],
      ["destination", row.destination],
      ["qp", hex(row.qp)],
      ["psn", hex(row.psn)],
      ["opcode", row.opcode],
      ["info", row.info],
    ];
    const choose = () => this.#choose(row.index, at);
    const line = make("tr", { role: "row", id: `packet-${row.index}`, class: row.kind, "aria-rowindex": at + 2, onclick: choose }, ...cells.map(([key, text]) => make("td", { role: "gridcell", class: key, title: key === "info" ? text : null }, String(text))));
    line.dataset.index = row.index;
    return line;
  }

  /** Marks the line of the chosen packet. */
  #mark() {
    for (const line of this.rows.children) line.setAttribute("aria-selected", String(Number(line.dataset.index) === this.#chosen));
    if (this.#chosen !== null) this.view.setAttribute("aria-activedescendant", `packet-${this.#chosen}`);
  }

  async #key(e) {
    const page = this.#visible;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.#total, End: this.#total }[e.key];
    if (step === undefined || this.#total === 0) return;
    e.preventDefault();
    // The first step chooses the first packet.
    const begins = this.#at < 0 && step === 1;
    const at = Math.min(Math.max(0, begins ? 0 : Math.max(0, this.#at) + step), this.#total - 1);
    this.#at = at;
    const first = this.#first();
    const to = at < first ? at : at >= first + page ? at - page + 1 : first;
    if (to !== first) this.view.scrollTop = Math.ceil(to / this.#speed);
    await this.#draw();
    this.#settle();
  }

  /** Chooses the packet at the place that a key led to, once it is drawn. */
  #settle() {
    const line = this.rows.children[this.#at - this.#from];
    const index = Number(line?.dataset.index);
    if (line && index !== this.#chosen) this.#choose(index, this.#at).catch(failed);
  }

  /** Draws again: the list has become visible. */
  shown() {
    this.#from = -1;
    return this.#draw();
  }

  /** Shows the fields of the packet with this index, which is at this place of the list. */
  async #choose(index, at) {
    this.#chosen = index;
    this.#at = at;
    this.#mark();
    const fields = await drawFields(this.#lab, index);
    if (this.#chosen === index) this.detail.replaceChildren(fields);
  }

  /** Goes to a frame. The filters are taken away, because they may hide it. */
  async go(frame) {
    for (const input of this.inputs.values()) input.value = "";
    this.only.value = "";
    await this.#filter();
    const { place } = await this.#lab.ask({ do: "place", frame });
    this.view.scrollTop = Math.max(0, Math.floor((place - 3) / this.#speed));
    this.#from = -1;
    await this.#draw();
    await this.#choose(place, place);
    this.view.focus({ preventScroll: true });
  }
}
