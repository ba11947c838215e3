// The list of packets, drawn only where it is looked at, and the fields of the chosen one.

import { hex, make, t } from "./dom.js";
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
  #chosen = null;

  constructor(lab, place) {
    this.#lab = lab;
    this.inputs = new Map(FILTERS.map((name) => [name, this.#input(name)]));
    this.only = make("select", { id: "filter-only", onchange: () => this.#filter() });
    this.said = make("p", { class: "quiet", role: "status" });
    this.rows = make("tbody", {});
    const head = ["no", "seconds", "source", "destination", "qp", "psn", "opcode", "info"].map((key) => make("th", { scope: "col", class: key }, t(`col_${key}`)));
    this.table = make("table", { class: "packets" }, make("thead", {}, make("tr", {}, ...head)), this.rows);
    this.space = make("div", { class: "space" }, this.table);
    this.view = make("div", { class: "view", tabindex: 0, role: "region", "aria-label": t("packets") }, this.space);
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
    this.view.scrollTop = 0;
    await this.#draw();
  }

  /** The first row that is visible. A list that is too tall for the browser is scrolled faster. */
  #first() {
    const tall = this.#total * ROW;
    return Math.floor(this.view.scrollTop * Math.max(1, tall / TALLEST) / ROW);
  }

  async #draw() {
    const count = Math.ceil(this.view.clientHeight / ROW) + 20;
    const first = this.#total > 0 ? this.#first() : 0;
    const from = Math.max(0, first - 10);
    if (this.#from >= 0 && Math.abs(from - this.#from) < 8) return;
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
    const tall = Math.min(TALLEST, this.#total * ROW + ROW);
    this.space.style.height = `${tall}px`;
    const faster = Math.max(1, (this.#total * ROW) / TALLEST);
    this.table.style.top = `${Math.min(from * ROW / faster, Math.max(0, tall - (page.rows.length + 1) * ROW))}px`;
    this.rows.replaceChildren(...page.rows.map((row) => this.#line(row)));
  }

  #line(row) {
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
    const is = row.index === this.#chosen;
    const line = make("tr", { class: row.kind, "aria-selected": String(is), onclick: () => this.choose(row.index) }, ...cells.map(([key, text]) => make("td", { class: key, title: key === "info" ? text : null }, String(text))));
    line.dataset.index = row.index;
    return line;
  }

  #key(e) {
    const lines = [...this.rows.children];
    const at = lines.findIndex((line) => Number(line.dataset.index) === this.#chosen);
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (step === undefined || lines.length === 0) return;
    e.preventDefault();
    const line = lines[at < 0 ? 0 : at + step];
    if (!line) return;
    this.view.scrollTop += step * ROW;
    this.choose(Number(line.dataset.index));
  }

  /** Draws again: the list has become visible. */
  shown() {
    this.#from = -1;
    return this.#draw();
  }

  /** Shows the fields of the packet with this index. */
  async choose(index) {
    this.#chosen = index;
    for (const line of this.rows.children) line.setAttribute("aria-selected", String(Number(line.dataset.index) === index));
    const fields = await drawFields(this.#lab, index);
    if (this.#chosen === index) this.detail.replaceChildren(fields);
  }

  /** Goes to a frame. The filters are taken away, because they may hide it. */
  async go(frame) {
    for (const input of this.inputs.values()) input.value = "";
    this.only.value = "";
    await this.#filter();
    const { place } = await this.#lab.ask({ do: "place", frame });
    const faster = Math.max(1, (this.#total * ROW) / TALLEST);
    this.view.scrollTop = Math.max(0, ((place - 3) * ROW) / faster);
    this.#from = -1;
    await this.#draw();
    await this.choose(place);
    this.view.focus({ preventScroll: true });
  }
}
