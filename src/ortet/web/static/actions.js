// Fork, undo, rewind, restore and pause from any page of a session. What would happen is told first,
// and done only if the session is still where that was told of.
import { api, el, onKey, short, toast } from "./base.js";

const session = document.body.dataset.session;
const dialog = document.getElementById("act");
const title = document.getElementById("act-title");
const say = dialog.querySelector(".act-say"), report = dialog.querySelector(".act-report");
const go = dialog.querySelector(".act-go"), cancel = dialog.querySelector(".act-cancel");
const PARTS = { mind: "what it knows and said", files: "files", processes: "running programs" };
let act = null, asked = 0, done = false;

const ACTS = {
  fork: {
    title: "Fork", button: "Fork", path: "forks",
    fields: (ref, event) => [
      text("Forks are sessions of their own that go on from here, with their own mind, files and programs." + (ref || event ? "" : " What is not committed is committed first.")),
      ref && text(`From commit ${short(ref)}.`),
      event && text(`From event ${event}: what it knew then, with the files of the last commit before.`),
      field("How many", { name: "n", type: "number", min: 1, max: 100, value: 1, required: true }),
      choice("With files and programs", "machine", true),
    ],
    body: (form, ref, event) => ({ n: Number(form.n.value), machine: form.machine.checked, ...(ref && { at: ref }), ...(event && { event: Number(event) }) }),
  },
  undo: {
    title: "Undo the last move", button: "Undo", path: "undo", foresees: true, back: "redo", danger: true,
    fields: () => [], body: () => ({ n: 1 }),
  },
  redo: {
    title: "Redo", button: "Redo", path: "redo", foresees: true, back: "undo",
    fields: () => [], body: () => ({ n: 1 }),
  },
  rewind: {
    title: "Rewind", button: "Rewind", path: "rewind", foresees: true, back: "undo", danger: true,
    fields: () => [field("Commits to go back", { name: "n", type: "number", min: 1, max: 1000000, value: 1, required: true })],
    body: (form) => ({ n: Number(form.n.value) }),
  },
  restore: {
    title: "Restore", button: "Restore", path: "restore", foresees: true, back: "undo", danger: true,
    fields: (ref) => [
      field("Commit", { name: "ref", value: ref || "HEAD~1", required: true, autocapitalize: "off", spellcheck: "false", class: "mono" }),
      el("fieldset", { class: "parts" }, el("legend", {}, "What to bring back"),
        ...Object.entries(PARTS).map(([name, says]) => choice(says, name, true))),
    ],
    body: (form) => {
      const only = Object.keys(PARTS).filter((name) => form[name].checked);
      return { ref: form.ref.value.trim(), ...(only.length < 3 && { only }) };
    },
  },
  pause: {
    title: "Pause", button: "Pause", path: "pause",
    fields: () => [
      text("The session is let go: its machine is committed and stopped, and another process may go on with it."),
      field("Why (optional)", { name: "why", maxlength: 1000 }),
    ],
    body: (form) => ({ why: form.why.value }),
  },
};

const text = (words) => el("p", { class: "dim" }, words);
const field = (label, attributes) => el("label", {}, label, el("input", attributes));
const choice = (label, name, on) => el("label", { class: "choice" }, el("input", { type: "checkbox", name, checked: on }), label);
const form = () => dialog.querySelector("form").elements;
const url = (path) => `/sessions/${session}/${path}`;

function open(name, ref = "", event = "") {
  act = { ...ACTS[name], ref, event, head: null };
  done = false;
  title.textContent = act.title;
  say.replaceChildren(...act.fields(ref, event).filter(Boolean));
  report.replaceChildren();
  go.textContent = act.button;
  go.type = act.danger ? "button" : "submit"; // Enter in a field does nothing that cannot be missed
  go.className = `act-go ${act.danger ? "danger" : "primary"}`;
  go.hidden = false;
  go.disabled = Boolean(act.foresees);
  cancel.textContent = "Cancel";
  if (!dialog.open) dialog.showModal();
  if (act.foresees) foresee();
}

/** What would happen; the answer to an older question is not shown. */
async function foresee() {
  const number = ++asked;
  go.disabled = true;
  report.setAttribute("aria-busy", "true");
  if (!report.firstChild) report.replaceChildren(text("Looking at what would happen …"));
  try {
    const told = await api("POST", url(act.path), { ...act.body(form(), act.ref, act.event), dry_run: true }, { quiet: true });
    if (number !== asked) return;
    act.head = told.head;
    report.replaceChildren(...lines(told, false));
    go.disabled = false;
  } catch (error) {
    if (number === asked) report.replaceChildren(wrong(error));
  } finally {
    if (number === asked) report.removeAttribute("aria-busy");
  }
}

async function perform() {
  go.disabled = true;
  const headers = act.head ? { "if-match": `"${act.head}"` } : {};
  try {
    const told = await api("POST", url(act.path), act.body(form(), act.ref, act.event), { quiet: true, headers });
    done = true;
    say.replaceChildren();
    go.hidden = true;
    cancel.textContent = "Close";
    if (told.forks) report.replaceChildren(...forked(told.forks));
    else if (told.done !== undefined) report.replaceChildren(...lines(told, true), ...back());
    else dialog.close();
    cancel.focus();
  } catch (error) {
    if (error.status !== 412) {
      report.prepend(wrong(error));
      go.disabled = false;
      return;
    }
    toast("The session has moved on meanwhile: this is what would happen now.");
    foresee();
  }
}

const wrong = (error) => el("p", { class: "flash bad", role: "alert" }, error.message);

/** A report in words: what changes, what will not come back. */
function lines(told, past) {
  const found = [];
  const add = (head, items, kind = "") => {
    if (items?.length) found.push(el("h3", { class: kind }, head), el("ul", { class: kind }, ...items.map((one) => el("li", {}, one))));
  };
  found.push(el("p", { class: past ? "flash good" : "" }, past ? "Done: it is at " : "To commit ",
    el("a", { class: "oid", href: `/s/${session}/c/${told.to}` }, short(told.to)),
    past ? `, ${told.written} ${told.written === 1 ? "file" : "files"} written, ${told.removed} removed.` : "."));
  add("Will not come back", (told.lost || []).map(lost), "lost");
  add("Done since, and stays done", (told.deeds || []).map((one) => [one.name, one.command, one.why].filter(Boolean).join(": ")), "lost");
  add("Others still see", (told.collaborations || []).map((one) => [one.kind, one.name, one.link].filter(Boolean).join(" ")), "lost");
  add("Secrets that cannot be had here now", (told.secrets || []).map((one) => `${one.name} (${one.state}), for ${one.used.join(", ")}`), "lost");
  add(past ? "Undone" : "Takes back", (told.steps || []).map((one) => [one.verb, named(one.detail)].filter(Boolean).join(" ")));
  if (told.looked === false) found.push(text("Its machine is at rest, or another process has it: files are told as its newest commit has them."));
  if (told.files) add(`Files: ${counted(told.files)}`, files(told.files));
  if (told.forgotten) add("Mind", [`${told.forgotten} ${told.forgotten === 1 ? "event" : "events"} that it will not know of any more; they stay in its history`]);
  add("Programs that go on", told.started);
  add("Programs that end", told.ends);
  add("Around it", (told.environment || []).map((one) => `${one.part} ${one.name}: ${one.then || "nothing"} then, ${one.now || "nothing"} now`));
  if (!past) found.push(text(told.kept ? "What is not committed now is committed first. You can undo this." : "Nothing is lost: you can undo this."));
  return found;
}

const named = (detail) => /^[0-9a-f]{40,}$/.test(detail || "") ? short(detail) : detail; // a message is nobody's to cut
const lost = (one) => `${one.path || one.command || one.what}: ${one.why}`;
const counted = (files) => Object.entries(files.counts).filter(([, many]) => many).map(([kind, many]) => `${many} ${kind}`).join(", ") || "none differ";
function files({ changes, total }) {
  const shown = changes.slice(0, 30).map((one) => `${one.kind}: ${one.old_path ? `${one.old_path} → ` : ""}${one.path}`);
  return total > shown.length ? [...shown, `and ${total - shown.length} more`] : shown;
}

const forked = (forks) => [
  el("p", { class: "flash good" }, forks.length === 1 ? "There is a fork:" : `There are ${forks.length} forks:`),
  el("ul", { class: "plain" }, ...forks.map((one) => el("li", {}, el("a", { href: `/s/${one.id}` }, one.name)))),
];

/** The way back. */
const back = () => act.back ? [el("p", {}, el("button", { type: "button", class: "act-back", onclick: () => open(act.back) }, act.back === "redo" ? "Redo" : "Undo this"))] : [];

go.addEventListener("click", () => { if (go.type === "button") perform(); });
cancel.addEventListener("click", () => dialog.close());
dialog.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.submitter === go) perform();
});
let timer = 0;
say.addEventListener("input", () => {
  if (!act.foresees) return;
  asked += 1; // what comes of before is old
  go.disabled = true;
  clearTimeout(timer);
  if (dialog.querySelector("form").checkValidity()) timer = setTimeout(foresee, 300);
});
dialog.addEventListener("close", () => { asked += 1; if (done) location.reload(); });

addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-act]");
  if (button) open(button.dataset.act, button.dataset.ref || "", button.dataset.event || "");
});
onKey("F", "Fork", () => {
  const here = document.getElementById("fork-here"); // where a page is at one event
  if (here) here.click();
  else open("fork");
});
onKey("U", "Undo the last move", () => open("undo"));
