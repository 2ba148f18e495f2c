// Two commits: files that were not drawn at once come when they are opened.

import { onKey, toast } from "./base.js";

for (const one of document.querySelectorAll("details[data-file]")) {
  one.addEventListener("toggle", async () => {
    if (!one.open || one.dataset.file === undefined) return;
    const file = one.dataset.file;
    delete one.dataset.file;
    const answer = await fetch(`?file=${file}`, { headers: { accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.ok) one.querySelector(".patch").replaceChildren(...page.body.childNodes);
    else toast("This file could not be read: load the page again", "bad");
  });
}

function show() {
  const found = /^#f\d+$/.test(location.hash) ? document.querySelector(location.hash) : null;
  if (found) found.open = true;
}

function next(by) {
  const files = [...document.querySelectorAll("details.diff")];
  const top = document.querySelector(".top").offsetHeight + 8;
  const tops = files.map((one) => one.getBoundingClientRect().top - top);
  const at = by > 0 ? tops.findIndex((one) => one > 4) : tops.findLastIndex((one) => one < -4);
  if (at >= 0) {
    files[at].scrollIntoView();
    files[at].querySelector("summary").focus({ preventScroll: true });
  }
}

addEventListener("hashchange", show);
show();
onKey("j", "The next file", () => next(1));
onKey("k", "The file before", () => next(-1));
onKey("x", "Swap the two", () => document.querySelector(".swap").click());
