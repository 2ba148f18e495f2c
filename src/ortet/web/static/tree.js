// The timeline tree: only rows that can be seen are drawn, whatever their number.

import { el, onKey, since, short, toast } from "./base.js";
import { COLOURS, Rows, paths } from "./lanes.js";
import { open as openCommit, close as closeCommit } from "./commit.js";
import { choose, compare, isChoosing, isMarked, mark } from "./marks.js";

const SVG = "http://www.w3.org/2000/svg";
const MORE = 8; // rows above and below the screen
const MOST = 6; // of them, that are drawn at once
const tree = document.getElementById("tree");
const space = tree.querySelector(".space");
const find = document.getElementById("find");
const count = document.getElementById("count");
const chooser = document.getElementById("choose");
const session = document.body.dataset.session;

const rows = new Rows();
const drawn = new Map();
let height = 34;
let step = 14;
let selected = -1;
let matches = [];
let matching = new Set();
let waiting = false;

// reading

async function load() {
  const first = Number(tree.dataset.first);
  const part = await get(`?upto=${first}`);
  rows.add(part);
  refresh();
  performance.mark("tree-first-rows");
  fromAddress();
  if (part.total > rows.length || part.tag === "sketch") {
    await new Promise((go) => requestAnimationFrame(() => setTimeout(go)));
    if (part.tag === "sketch") return again();
    if (!rows.add(await get(`?from=${rows.length}`))) return again();
    forget();
    refresh();
    fromAddress();
  }
  tree.dataset.ready = rows.length;
}

async function get(query) {
  const answer = await fetch(tree.dataset.src + query, { headers: { accept: "application/json" } });
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    toast(told.message || `the server answered ${answer.status}`, "bad");
    throw new Error("no rows");
  }
  return answer.json();
}

/** Something moved: the rows are read again, and what is looked at stays where it is. */
async function again() {
  const chosen = rows.oid[selected];
  const top = Math.floor(tree.scrollTop / height);
  const kept = top > 0 ? rows.oid[top] : undefined;
  const part = await get("");
  if (part.tag === rows.tag) return;
  rows.clear();
  rows.add(part);
  forget();
  selected = chosen === undefined ? -1 : rows.at.get(chosen) ?? -1;
  const now = kept === undefined ? undefined : rows.at.get(kept);
  resize();
  if (now !== undefined) tree.scrollTop += (now - top) * height;
  search();
  refresh();
  fromAddress();
  tree.dataset.ready = rows.length;
}

// drawing

const x = (lane) => 12 + lane * step;

function resize() {
  height = matchMedia("(max-width: 44rem)").matches ? 52 : 34;
  const most = tree.clientWidth * (height > 40 ? 0.28 : 0.25);
  step = Math.max(2.5, Math.min(14, (most - 24) / Math.max(1, rows.lanes - 1)));
  tree.style.setProperty("--graph", `${Math.ceil(x(rows.lanes - 1) + 12)}px`);
  tree.style.setProperty("--row", `${height}px`);
  space.style.height = `${rows.total * height}px`;
}

function forget() {
  for (const one of drawn.values()) one.remove();
  drawn.clear();
}

function refresh() {
  tree.parentElement.classList.toggle("is-empty", !rows.total);
  resize();
  draw();
  count.textContent = find.value.trim()
    ? matchesText() : `${rows.total.toLocaleString()} ${rows.total === 1 ? "commit" : "commits"}`;
}

function draw() {
  waiting = false;
  const top = tree.scrollTop; // read before anything is changed: after that it costs a layout
  const end = top + tree.clientHeight;
  const first = Math.max(0, Math.floor(top / height) - MORE);
  const last = Math.min(rows.length, Math.ceil(end / height) + MORE);
  for (const [row, one] of drawn) {
    if (row < first || row >= last) {
      one.remove();
      drawn.delete(row);
    }
  }
  let above = first ? rows.open(first - 1) : [];
  let left = MOST;
  const now = Date.now();
  const seen = (row) => (row + 1) * height > top && row * height < end;
  const fresh = document.createDocumentFragment();
  for (let row = first; row < last; row++) {
    if (!drawn.has(row) && (seen(row) || left > 0)) {
      const one = line(row, row ? rows.edges(row - 1, above) : [], now);
      drawn.set(row, one);
      fresh.append(one);
      left -= 1;
    }
    if (row) above = rows.below(row - 1, above);
  }
  if (left <= 0 && !waiting) { // what cannot be seen yet can wait for the next frame
    waiting = true;
    requestAnimationFrame(draw);
  }
  space.append(fresh);
}

function line(row, edges, now) {
  const oid = rows.oid[row];
  const one = el("div", {
    class: "row", role: "option", id: `row-${row}`,
    "aria-posinset": row + 1, "aria-setsize": rows.total, "aria-selected": String(row === selected),
  });
  one.style.transform = `translateY(${row * height}px)`;
  one.style.zIndex = row + 1; // over what comes down to it
  one.dataset.row = row;
  if (rows.away.has(row)) one.classList.add("is-away");
  if (matching.has(row)) one.classList.add("is-match");
  if (isMarked(oid)) tick(one, true);
  const text = el("span", { class: "said cut" });
  for (const [kind, name, to] of rows.labels[row] || []) text.append(label(kind, name, to));
  text.append(el("span", { class: "title" }, rows.title[row] || "(no message)"));
  if (rows.rest[row]) text.append(el("span", { class: "dim" }, `  ${rows.rest[row]}`));
  const at = new Date(rows.ms[row]);
  one.append(
    picture(row, edges),
    text,
    el("span", { class: "author cut dim" }, rows.authors[rows.author[row]]),
    el("time", { class: "dim", datetime: at.toISOString() }, since(rows.ms[row], now)),
    el("a", { class: "oid dim", href: `/s/${session}/c/${oid}`, tabindex: "-1" }, short(oid)),
  );
  return one;
}

function label(kind, name, to) {
  const classes = { head: "head", live: "live", tag: "tag", kept: "good", attempt: "attempt" };
  const found = `badge ${classes[kind] || "branch"}`;
  if (to && kind !== "head" && kind !== "live") {
    return el("a", { class: found, href: `/s/${to}`, tabindex: "-1" }, name);
  }
  return el("span", { class: found }, name);
}

function picture(row, edges) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "lanes");
  svg.setAttribute("aria-hidden", "true");
  const own = rows.lane[row];
  for (const [colour, d] of paths(edges, x, height)) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    path.setAttribute("class", `lane-${colour}`);
    svg.append(path);
  }
  const dot = document.createElementNS(SVG, "circle");
  dot.setAttribute("cx", x(own));
  dot.setAttribute("cy", 0);
  dot.setAttribute("r", Math.min(4.5, Math.max(2, step / 2.4)));
  dot.setAttribute("class", `lane-${own % COLOURS}`);
  svg.append(dot);
  return svg;
}

// choosing

function select(row, { show = true } = {}) {
  if (!rows.length) return;
  const now = Math.max(0, Math.min(rows.length - 1, row));
  drawn.get(selected)?.setAttribute("aria-selected", "false");
  selected = now;
  const top = now * height;
  if (top < tree.scrollTop) tree.scrollTop = top;
  else if (top + height > tree.scrollTop + tree.clientHeight) tree.scrollTop = top + height - tree.clientHeight;
  draw();
  drawn.get(now)?.setAttribute("aria-selected", "true");
  tree.setAttribute("aria-activedescendant", `row-${now}`);
  if (show) preview();
}

let soon = 0;

/** What is chosen by keys is shown when the keys rest. */
function preview() {
  clearTimeout(soon);
  if (matchMedia("(max-width: 64rem)").matches) return;
  soon = setTimeout(() => openSelected(false), 120);
}

function openSelected(go = true) {
  const oid = rows.oid[selected];
  if (!oid) return;
  if (go && matchMedia("(max-width: 64rem)").matches) {
    location.href = `/s/${session}/c/${oid}`;
    return;
  }
  history.replaceState(null, "", `#c=${oid}`);
  openCommit(session, oid);
}

const told = (row) => [rows.oid[row], rows.title[row], rows.ms[row]];

function tick(one, on) {
  one.classList.toggle("is-marked", on);
  if (on) one.setAttribute("aria-checked", "true");
  else one.removeAttribute("aria-checked");
}

function fromAddress() {
  const found = /^#c=([0-9a-f]{64})$/.exec(location.hash);
  const row = found ? rows.at.get(found[1]) : undefined;
  if (row === undefined || row === selected) return;
  const off = row * height - tree.clientHeight / 2;
  if (row * height < tree.scrollTop || row * height > tree.scrollTop + tree.clientHeight) tree.scrollTop = off;
  select(row, { show: false });
  openSelected(false);
}

// searching

function search() {
  const words = find.value.trim().toLowerCase();
  matches = [];
  if (words) {
    for (let row = 0; row < rows.length; row++) {
      if (hay(row).includes(words)) matches.push(row);
    }
  }
  matching = new Set(matches);
  for (const [row, one] of drawn) one.classList.toggle("is-match", matching.has(row));
  tree.classList.toggle("is-searching", words !== "");
}

function hay(row) {
  const labels = (rows.labels[row] || []).map((one) => one[1]).join(" ");
  return `${rows.title[row]} ${rows.rest[row] || ""} ${rows.authors[rows.author[row]]} ${rows.oid[row]} ${labels}`
    .toLowerCase();
}

function matchesText() {
  if (!matches.length) return "nothing found";
  const at = matches.indexOf(selected);
  return at < 0 ? `${matches.length.toLocaleString()} found` : `${at + 1} of ${matches.length.toLocaleString()}`;
}

function next(by) {
  if (!matches.length) return;
  const found = by > 0
    ? matches.find((row) => row > selected) ?? matches[0]
    : matches.findLast((row) => row < selected) ?? matches.at(-1);
  select(found);
  refresh();
}

// events

tree.addEventListener("scroll", () => {
  if (!waiting) {
    waiting = true;
    requestAnimationFrame(draw);
  }
}, { passive: true });

tree.addEventListener("click", (event) => {
  const one = event.target.closest(".row");
  if (!one || event.target.closest("a")) return;
  const row = Number(one.dataset.row);
  select(row, { show: false });
  if (isChoosing()) mark(...told(row));
  else openSelected();
});

chooser?.addEventListener("click", () => choose(!isChoosing()));
addEventListener("marks", () => {
  for (const [row, one] of drawn) tick(one, isMarked(rows.oid[row]));
  tree.classList.toggle("is-choosing", isChoosing());
  chooser?.setAttribute("aria-pressed", String(isChoosing()));
});

tree.addEventListener("pointerover", (event) => {
  const time = event.target.closest("time"); // only where it is looked at: to say a date takes long
  if (time) time.title = new Date(time.dateTime).toLocaleString();
});

tree.addEventListener("focus", () => {
  if (selected < 0 && tree.matches(":focus-visible")) select(Math.floor(tree.scrollTop / height), { show: false });
});

find.addEventListener("input", () => {
  search();
  if (matches.length && !matching.has(selected)) select(matches[0], { show: false });
  refresh();
});

find.addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    event.preventDefault();
    next(event.shiftKey ? -1 : 1);
  } else if (event.key === "Escape") {
    find.value = "";
    search();
    refresh();
    tree.focus();
  }
});

new ResizeObserver(() => {
  const before = [height, step, tree.clientHeight];
  resize();
  if (before.join() !== [height, step, tree.clientHeight].join()) {
    forget();
    draw();
  }
}).observe(tree);

addEventListener("hashchange", fromAddress);

const page = () => Math.max(1, Math.floor(tree.clientHeight / height) - 1);
onKey("ArrowDown", "The commit below", () => select(selected + 1));
onKey("ArrowUp", "The commit above", () => select(selected - 1));
onKey("PageDown", "A page down", () => select(selected + page()));
onKey("PageUp", "A page up", () => select(selected - page()));
onKey("Home", "The newest commit", () => select(0));
onKey("End", "The oldest commit", () => select(rows.length - 1));
onKey("Enter", "Open the commit", () => openSelected());
onKey("Escape", "Close the commit", () => {
  if (isChoosing()) return choose(false);
  closeCommit();
  history.replaceState(null, "", location.pathname);
});
onKey("n", "The next that was found", () => next(1));
onKey("N", "The one before that was found", () => next(-1));
onKey("m", "Mark a commit, to compare it", () => selected >= 0 && mark(...told(selected)));
onKey("c", "Compare the two that are marked", () => compare(...(selected >= 0 ? told(selected) : [])));

// what happens meanwhile

let calm = 0;
const live = new EventSource("/live");
live.addEventListener("changed", () => {
  clearTimeout(calm);
  calm = setTimeout(() => again().catch(() => {}), 200);
});
setInterval(() => {
  for (const [row, one] of drawn) one.querySelector("time").textContent = since(rows.ms[row]);
}, 30000);

await load();
