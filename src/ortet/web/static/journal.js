// The journal as it grows: the stream says that something came, the server draws it. After a pause
// the browser comes again with the id of the last event that it has heard of.
import { api, onKey, toast } from "./base.js";

const session = document.body.dataset.session;
const list = document.getElementById("events");
const button = document.getElementById("follow");
let tip = Number(list.dataset.tip), stream = null, busy = false, again = false, timer = 0;

async function more() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const asked = new URL(location.href);
    asked.searchParams.delete("before");
    asked.searchParams.set("behind", tip);
    const answer = await fetch(asked, { headers: { accept: "text/html" } });
    if (answer.ok) put(new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("events"));
  } catch {
    // the stream comes again, and so does this
  } finally {
    busy = false;
    if (again) { again = false; more(); }
  }
}

function put(fresh) {
  if (!fresh) return;
  for (const one of list.querySelectorAll("[data-waiting]")) one.remove();
  const here = [...fresh.children].filter((one) => !one.id || !document.getElementById(one.id));
  for (const one of here) if (one.id) one.classList.add("new");
  list.prepend(...here);
  tip = Number(fresh.dataset.tip);
  list.dataset.tip = tip;
  if (here.length) document.getElementById("nothing")?.remove();
}

const soon = () => { clearTimeout(timer); timer = setTimeout(more, 60); };

/** It was moved to another state, and its journal is another now; who reads a report reads on. */
function anew() {
  const dialog = document.querySelector("dialog[open]");
  if (dialog) dialog.addEventListener("close", anew, { once: true });
  else location.replace(location.pathname + location.search);
}

function follow() {
  stream = new EventSource(`/sessions/${session}/events/stream?after=${tip}`);
  stream.onmessage = soon;
  stream.addEventListener("waiting", soon);
  stream.addEventListener("moved", anew);
  stream.addEventListener("live", () => { list.dataset.following = "yes"; });
}

function toggle() {
  if (stream) { stream.close(); stream = null; } else { follow(); more(); }
  button.setAttribute("aria-pressed", String(Boolean(stream)));
  button.textContent = stream ? "Following" : "Follow";
}

if (button) {
  follow();
  button.addEventListener("click", toggle);
  onKey("f", "Follow new events, or stop", toggle);
}
addEventListener("pagehide", () => stream?.close());

document.getElementById("comment")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target, text = form.elements.text.value.trim();
  if (!text) return;
  const send = form.querySelector("button");
  send.disabled = true;
  try {
    await api("POST", `/sessions/${session}/comments`, { text });
    form.reset();
    toast("The agent will find your comment");
    if (!stream) more();
  } finally {
    send.disabled = false;
  }
});
