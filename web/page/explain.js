// The catalogue of `rxe explain`, searched as one types.

import { $, button, failed, language, make, onLanguage, t } from "./dom.js";
import { Lab } from "./lab.js";

const lab = new Lab();
let asked = 0;

async function search(query, exact = query) {
  const nth = ++asked;
  const ask = (query) => lab.ask({ do: "explain", query, lang: language() });
  const { topics, exact: named } = await ask(query);
  const found = exact === query ? named : (await ask(exact)).exact;
  if (nth !== asked) return;
  const item = (topic) => make("li", {}, button(topic.title, () => choose(query, topic.id).catch(failed), { "aria-current": String(found?.id === topic.id) }));
  $("topics").replaceChildren(...topics.map(item));
  if (found !== null) return $("topic").replaceChildren(...article(found));
  if (topics.length === 0) return $("topic").replaceChildren(make("p", { class: "quiet" }, t("no_topic")));
  if (query !== "" && exact === query) return search(query, topics[0].id);
  $("topic").replaceChildren(make("p", { class: "quiet" }, t("search_more")));
}

/** Shows a topic of the list. The address then leads to it. */
async function choose(query, id) {
  history.replaceState(null, "", `#explain/${encodeURIComponent(id)}`);
  await search(query, id);
  $("topics").querySelector("[aria-current=true]")?.focus();
}

function article({ title, what, causes, remedies, transitions = [], see_also = [] }) {
  const list = (key, items) => (items.length === 0 ? [] : [make("h3", {}, t(key)), make("ul", {}, ...items.map((it) => make("li", {}, it)))]);
  const steps = transitions.map((it) => make("li", {}, make("b", {}, `${it.from} → ${it.to}`), ` ${it.services.join(", ")}`, make("br"), make("code", {}, it.required.join(" | ") || "–")));
  const also = see_also.map((topic) => make("a", { href: `#explain/${encodeURIComponent(topic)}` }, topic));
  return [
    make("h2", {}, title),
    make("p", {}, what),
    ...list("causes", causes),
    ...list("remedies", remedies),
    ...list("transitions", steps),
    ...(also.length === 0 ? [] : [make("h3", {}, t("see_also")), make("p", { class: "bar" }, ...also)]),
  ];
}

/** Shows the explanation of a topic. */
export function explain(topic) {
  $("query").value = topic;
  search(topic).catch(failed);
}

/** Makes the view ready. */
export function startExplain() {
  $("query").addEventListener("input", () => search($("query").value).catch(failed));
  onLanguage(() => search($("query").value).catch(failed));
}
