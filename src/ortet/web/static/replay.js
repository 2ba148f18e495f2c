// Steps through a session, event by event. What is seen is drawn by the server; some is kept.

import { el, onKey, short, toast } from "./base.js";

const slider = document.getElementById("at");
const place = document.getElementById("moment");
const output = document.querySelector(".player output strong");
const button = document.querySelector("[data-play]");
const pace = document.getElementById("pace");
const where = document.getElementById("where");
const fork = document.getElementById("fork-here"), restore = document.getElementById("restore-here");
const session = document.body.dataset.session;
const KEPT = 200;
const known = new Map();
let wanted = Number(slider?.value);
let shown = wanted;
let reading = false;
let playing = 0;

const last = () => Number(slider.max);

async function draw(at) {
  if (!known.has(at)) {
    const answer = await fetch(`?at=${at}&part=1`, { headers: { accept: "text/html" } });
    if (!answer.ok) throw new Error("This event could not be read: load the page again");
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    known.set(at, page.body);
    if (known.size > KEPT) known.delete(known.keys().next().value);
  }
  return [...known.get(at).cloneNode(true).childNodes];
}

/** Which commit this is, and what can be done from here. */
function tellWhere() {
  const { at, commit, title, behind } = place.querySelector(".moment").dataset;
  const far = Number(behind) ? `${behind} ${behind === "1" ? "event" : "events"} behind ` : "At ";
  where.replaceChildren(...(commit
    ? [far, el("a", { class: "oid", href: `/s/${session}/c/${commit}` }, short(commit)), ` ${title}`]
    : ["No commit yet"]));
  if (!fork) return;
  Object.assign(fork.dataset, { event: at, ref: "" });
  restore.dataset.ref = commit;
  fork.disabled = at === "0";
  restore.disabled = !commit;
}

/** Only the newest wish is looked after: a slider has many. */
async function follow() {
  if (reading) return;
  reading = true;
  try {
    while (shown !== wanted) {
      const at = wanted;
      const open = place.querySelector("details")?.open;
      place.replaceChildren(...await draw(at));
      if (open) place.querySelector("details").open = true;
      shown = at;
      tellWhere();
      history.replaceState(null, "", `?at=${at}`);
    }
  } catch (error) {
    stop();
    toast(error.message, "bad");
  } finally {
    reading = false;
  }
}

function go(at) {
  wanted = Math.max(0, Math.min(last(), at));
  slider.value = wanted;
  slider.setAttribute("aria-valuetext", `event ${wanted} of ${last()}`);
  output.textContent = wanted;
  return follow();
}

function stop() {
  clearTimeout(playing);
  playing = 0;
  button.textContent = "▶";
  button.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-label", "Play");
}

async function tick() {
  if (wanted >= last()) return stop();
  await go(wanted + 1);
  if (playing) playing = setTimeout(tick, Number(pace.value));
}

function play() {
  if (playing) return stop();
  button.textContent = "❚❚";
  button.setAttribute("aria-pressed", "true");
  button.setAttribute("aria-label", "Pause");
  if (wanted >= last()) wanted = 0;
  playing = setTimeout(tick, 0);
}

if (slider) {
  tellWhere();
  slider.addEventListener("input", () => {
    stop();
    go(Number(slider.value));
  });
  button.addEventListener("click", play);
  for (const one of document.querySelectorAll("[data-go]")) {
    one.addEventListener("click", () => go(wanted + Number(one.dataset.go)));
  }
  onKey("ArrowRight", "The next event", () => go(wanted + 1));
  onKey("ArrowLeft", "The event before", () => go(wanted - 1));
  onKey("PageDown", "Ten events on", () => go(wanted + 10));
  onKey("PageUp", "Ten events back", () => go(wanted - 10));
  onKey("Home", "Before the first event", () => go(0));
  onKey("End", "The last event", () => go(last()));
  onKey(" ", "Play or pause", play);
}
