// The page: its three views, its language, and links that lead into it.

import { openCapture, openExample, report, startCapture } from "./capture.js";
import { chooseScenario, followLink, startConversation } from "./conversation.js";
import { $, failed, language, setLanguage, tabs } from "./dom.js";
import { explain, startExplain } from "./explain.js";

const FIRST = "rnr_nak";
let started = false;
let made = false;

const choose = tabs($("tabs"), (view) => {
  document.body.dataset.view = view;
  // A view that a link did not choose begins with something to see.
  if (started && view === "make" && !made) {
    made = true;
    chooseScenario(FIRST);
  }
});

/** Follows the part of the address behind `#`. */
async function follow() {
  const hash = decoded(location.hash.slice(1));
  if (hash.startsWith("explain")) {
    choose("explain");
    explain(hash.slice("explain/".length));
  } else if (hash.startsWith("scenario/") || hash.startsWith("toml/")) {
    made = true;
    choose("make");
    await followLink(hash);
  } else if (hash === "example") {
    choose("capture");
    await openExample();
  } else if (hash === "capture") {
    choose("capture");
  } else {
    choose("make");
  }
}

/** The text of a part of the address, as far as it is one. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The language that was chosen before, or the browser's. */
function firstLanguage() {
  const asked = new URLSearchParams(location.search).get("lang");
  if (asked === "en" || asked === "zh") return asked;
  try {
    const kept = localStorage.getItem("language");
    if (kept !== null) return kept;
  } catch {
    // A page without storage asks the browser each time.
  }
  return navigator.language.startsWith("zh") ? "zh" : "en";
}

function speak(to) {
  setLanguage(to);
  $("language").textContent = to === "zh" ? "English" : "中文";
  $("language").lang = to === "zh" ? "en" : "zh";
}

$("language").addEventListener("click", () => {
  const to = language() === "zh" ? "en" : "zh";
  try {
    localStorage.setItem("language", to);
  } catch {
    // It is not kept.
  }
  speak(to);
});

// For tests, and for whoever looks at the page with the browser's tools.
window.lab = { openCapture, report };

try {
  startCapture(choose);
  startExplain();
  await startConversation();
  speak(firstLanguage());
  started = true;
  addEventListener("hashchange", () => follow().catch(failed));
  await follow();
} catch (e) {
  failed(e);
}
