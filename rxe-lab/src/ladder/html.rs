//! Draws diagrams as one self-contained HTML page: the SVG, a search field and zoom.

use super::{Ladder, svg};

/// Returns an HTML page with these diagrams.
pub fn html(ladders: &[Ladder]) -> String {
    format!("{HEAD}{}{TAIL}", svg(ladders))
}

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>rxe ladder</title>
<style>
body{margin:0;font-family:sans-serif}
header{position:sticky;top:0;background:#eee;padding:8px;z-index:1;font-size:13px}
input{width:26em}
.legend{margin-left:2em}
.legend span{margin-right:1em}
.legend span::before{content:"→ ";font-weight:bold}
</style></head><body>
<header>
<input id="search" type="search" placeholder="search: an opcode, PSN, QP, retransmitted, NAK …" autofocus>
<button id="previous">previous</button> <button id="next">next</button> <span id="count"></span>
<button id="out">−</button> <button id="in">+</button>
<span class="legend"><span class="request">request</span><span class="response">response</span><span
class="again">sent again</span><span class="nak">refused, missing or damaged</span><span
class="control">CM, CNP</span></span>
</header>
<main>
"#;

const TAIL: &str = r#"</main>
<script>
const picture = document.querySelector("svg");
const rows = [...document.querySelectorAll(".row")];
const count = document.getElementById("count");
const search = document.getElementById("search");
let hits = [], at = -1, scale = 1;
function show(step) {
  if (!hits.length) return;
  at = (at + step + hits.length) % hits.length;
  hits[at].scrollIntoView({block: "center"});
  count.textContent = `${at + 1} of ${hits.length}`;
}
function find() {
  const wanted = search.value.toLowerCase();
  hits = [];
  for (const row of rows) {
    const hit = wanted !== "" && row.textContent.toLowerCase().includes(wanted);
    row.classList.toggle("hit", hit);
    if (hit) hits.push(row);
  }
  at = -1;
  count.textContent = wanted === "" ? "" : "none";
  show(1);
}
function zoom(factor) {
  scale *= factor;
  const box = picture.viewBox.baseVal;
  picture.setAttribute("width", box.width * scale);
  picture.setAttribute("height", box.height * scale);
}
search.addEventListener("input", find);
search.addEventListener("keydown", e => { if (e.key === "Enter") show(e.shiftKey ? -1 : 1); });
document.getElementById("next").addEventListener("click", () => show(1));
document.getElementById("previous").addEventListener("click", () => show(-1));
document.getElementById("in").addEventListener("click", () => zoom(1.25));
document.getElementById("out").addEventListener("click", () => zoom(0.8));
addEventListener("wheel", e => {
  if (e.ctrlKey) { e.preventDefault(); zoom(e.deltaY < 0 ? 1.1 : 1 / 1.1); }
}, {passive: false});
</script></body></html>
"#;
