// The panel beside the tree: one commit, drawn by the server as on its own page.

import { toast } from "./base.js";

const place = document.getElementById("commit");
const overview = document.getElementById("overview");
const panel = document.getElementById("panel");
let asking = null;

export async function open(session, oid) {
  asking?.abort();
  asking = new AbortController();
  place.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(`/s/${session}/c/${oid}?part=1`, {
      headers: { accept: "text/html" }, signal: asking.signal,
    });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok) throw new Error(page.querySelector("main p:not(.code)")?.textContent || "no such commit");
    place.replaceChildren(...page.body.childNodes);
    place.dataset.oid = oid;
    place.hidden = false;
    overview.hidden = true;
    panel.scrollTop = 0;
    dispatchEvent(new Event("shown"));
    place.querySelector("[data-close]")?.addEventListener("click", () => {
      history.replaceState(null, "", location.pathname);
      close();
    });
  } catch (error) {
    if (error.name !== "AbortError") toast(error.message, "bad");
  } finally {
    place.removeAttribute("aria-busy");
  }
}

export function close() {
  asking?.abort();
  place.hidden = true;
  place.replaceChildren();
  delete place.dataset.oid;
  overview.hidden = false;
}
