// A page that draws itself again when something in the store has changed. What is in #live is what
// the server draws; nothing is drawn here.
import { toast } from "./base.js";

const region = document.getElementById("live");
let busy = false, again = false;

async function refresh() {
  if (document.hidden || !region) return;
  if (busy) { again = true; return; }
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.status === 401) return location.reload();
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    replace(page.getElementById("live"));
  } catch {
    // the stream says when the server is back
  } finally {
    busy = false;
    if (again) { again = false; refresh(); }
  }
}

/** Puts new children in the place of the old ones, unless they are the same; the focus stays. */
function replace(fresh) {
  if (!fresh || withoutTimes(fresh) === withoutTimes(region)) return;
  const held = region.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  region.replaceChildren(...fresh.childNodes);
  if (held) region.querySelector(`[href="${CSS.escape(held)}"]`)?.focus();
  region.dispatchEvent(new CustomEvent("drawn", { bubbles: true }));
}

const withoutTimes = (one) => one.innerHTML.replaceAll(/<time[^>]*>[^<]*<\/time>/g, (found) => found.split("title")[0]);

if (region?.dataset.live) {
  const stream = new EventSource(region.dataset.live);
  stream.addEventListener("changed", refresh);
  let lost = false;
  stream.onerror = () => { if (!lost) { lost = true; toast("The server does not answer. This page waits for it."); } };
  stream.onopen = () => { if (lost) { lost = false; refresh(); } };
  addEventListener("pagehide", () => stream.close());
  document.addEventListener("visibilitychange", refresh);
}
