// Two commits that are to be compared: chosen by touch, mouse or keys, in the tree or on a commit's
// own page, and kept as long as the tab is there.

import { el, short, toast } from "./base.js";

const session = document.body.dataset.session;
const place = `ortet-marks-${session}`;
const bar = document.getElementById("marks");
let marks = read();
let choosing = false;

function read() {
  try {
    const found = JSON.parse(sessionStorage.getItem(place) || "[]");
    return found.filter((one) => /^[0-9a-f]{64}$/.test(one.oid)).slice(-2);
  } catch {
    return [];
  }
}

export const isMarked = (oid) => marks.some((one) => one.oid === oid);
export const isChoosing = () => choosing;

/** Marks a commit, or no more; a third one takes the place of the first. */
export function mark(oid, title, ms) {
  marks = isMarked(oid) ? marks.filter((one) => one.oid !== oid) : [...marks, { oid, title, ms }].slice(-2);
  changed();
}

/** While one chooses, a click on a commit marks it. */
export function choose(on) {
  choosing = on;
  changed();
}

export function clear() {
  marks = [];
  choose(false);
}

/** The two that are marked, or the one and this; the older one first. */
export function compare(oid, title = "", ms = 0) {
  const two = marks.length < 2 && oid && !isMarked(oid) ? [...marks, { oid, title, ms }] : marks;
  if (two.length < 2) return toast("Mark a commit with m, choose another, then press c");
  location.href = address(two);
}

const inOrder = (two) => [...two].sort((a, b) => a.ms - b.ms);
const address = (two) => `/s/${session}/compare/${inOrder(two).map((one) => one.oid).join("/")}`;

function changed() {
  try {
    sessionStorage.setItem(place, JSON.stringify(marks));
  } catch {
    // then they are there until the page is left
  }
  draw();
  dispatchEvent(new Event("marks"));
}

function draw() {
  for (const one of document.querySelectorAll("[data-mark]")) {
    const on = isMarked(one.closest("[data-oid]").dataset.oid);
    one.setAttribute("aria-pressed", String(on));
    one.textContent = on ? "Marked" : "Mark";
  }
  bar.hidden = !marks.length && !choosing;
  if (bar.hidden) return;
  const said = ["Choose two commits to compare", "Choose another to compare it with"][marks.length];
  const chosen = inOrder(marks).map((one) => el("li", {},
    el("button", { type: "button", class: "quiet", "aria-label": `Unmark ${short(one.oid)}`, onclick: () => mark(one.oid) }, "×"),
    el("span", { class: "oid" }, short(one.oid)), el("span", { class: "cut" }, one.title)));
  bar.querySelector("ol").replaceChildren(...chosen, ...(said ? [el("li", { class: "dim" }, said)] : []));
  const go = bar.querySelector(".go");
  go.toggleAttribute("hidden", marks.length < 2);
  if (marks.length === 2) go.href = address(marks);
}

bar.querySelector(".go").addEventListener("click", () => sessionStorage.removeItem(place));
bar.querySelector(".stop").addEventListener("click", clear);
addEventListener("click", (event) => {
  const one = event.target.closest?.("[data-mark]")?.closest("[data-oid]");
  if (one) mark(one.dataset.oid, one.dataset.title, Number(one.dataset.ms));
});
addEventListener("shown", draw); // a commit came into the panel
addEventListener("pageshow", (event) => { if (event.persisted) { marks = read(); choose(false); } });
draw();
