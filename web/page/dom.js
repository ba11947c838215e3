// Elements, texts in two languages, and small things that all views need.

import en from "./text/en.js";
import zh from "./text/zh.js";

const TEXTS = { en, zh };
const changed = [];
let chosen = "en";

/** The element with this ID. */
export const $ = (id) => document.getElementById(id);

/** The language of the page: `en` or `zh`. */
export const language = () => chosen;

/** A text in the page's language. `{0}` stands for the first value. */
export function t(key, ...values) {
  const text = TEXTS[chosen][key] ?? en[key] ?? key;
  return text.replace(/\{(\d)\}/g, (_, nth) => values[nth] ?? "");
}

/** Calls `f` whenever the language changes. */
export const onLanguage = (f) => changed.push(f);

/** Changes the language, and all texts of the page. */
export function setLanguage(to) {
  chosen = to;
  document.documentElement.lang = to === "zh" ? "zh-CN" : "en";
  for (const it of document.querySelectorAll("[data-t]")) it.textContent = t(it.dataset.t);
  for (const it of document.querySelectorAll("[data-label]")) it.setAttribute("aria-label", t(it.dataset.label));
  for (const it of document.querySelectorAll("[data-placeholder]")) it.placeholder = t(it.dataset.placeholder);
  for (const f of changed) f();
}

/** Makes an element. Properties that begin with `on` are listeners; others are attributes. */
export function make(tag, properties = {}, ...children) {
  const it = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) it.addEventListener(name.slice(2), value);
    else if (value === true) it.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) it.setAttribute(name, value);
  }
  it.append(...children.filter((child) => child !== null && child !== undefined));
  return it;
}

/** Makes a button. */
export const button = (text, onclick, properties = {}) => make("button", { type: "button", onclick, ...properties }, text);

/** Lets a list of tabs be used with the mouse and the arrow keys. Returns a function that chooses one. */
export function tabs(list, onchoose) {
  const all = [...list.querySelectorAll("[role=tab]")];
  const choose = (tab, focus = false) => {
    for (const it of all) {
      const is = it === tab;
      it.setAttribute("aria-selected", String(is));
      it.tabIndex = is ? 0 : -1;
      $(it.getAttribute("aria-controls")).hidden = !is;
    }
    if (focus) tab.focus();
    onchoose?.(tab.getAttribute("aria-controls"));
  };
  for (const it of all) it.addEventListener("click", () => choose(it));
  list.addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    const at = all.indexOf(document.activeElement);
    if (step === undefined || at < 0) return;
    e.preventDefault();
    choose(all[(at + step + all.length) % all.length], true);
  });
  return (id) => choose(all.find((it) => it.getAttribute("aria-controls") === id));
}

/** Says something for two seconds, also to screen readers. */
let leaving;
export function toast(text) {
  $("toast").textContent = text;
  clearTimeout(leaving);
  leaving = setTimeout(() => ($("toast").textContent = ""), 2500);
}

/** Copies a text, and says so. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast(t("copied"));
  } catch {
    // Without a secure context there is no clipboard: the text is selected instead.
    const area = make("textarea", { class: "copy" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    toast(t(done ? "copied" : "not_copied"));
  }
}

/** Saves bytes or a text as a file. */
export function saveAs(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** A time in a unit that fits. */
export function time(seconds) {
  const [value, unit] = seconds < 1e-3 ? [seconds * 1e6, "µs"] : seconds < 1 ? [seconds * 1e3, "ms"] : [seconds, "s"];
  const digits = value >= 100 || unit === "µs" ? 1 : 3;
  return `${Number(value.toFixed(digits))} ${unit}`;
}

/** A number of 24 bits, as the command prints it. */
export const hex = (n) => (n === null ? "" : `0x${n.toString(16).padStart(6, "0")}`);

/** Shows what went wrong in the page itself. */
export function failed(e) {
  const it = $("alert");
  it.textContent = t("broken", e.message ?? String(e));
  it.hidden = false;
}
