// What every page has: requests whose errors are seen, keys, the theme, times that stay true.

const THEME = "ortet-theme";
const FIELD = "input, textarea, select, [contenteditable]";
const keys = new Map();

/** An element. Children that are text stay text, whatever they hold. */
export function el(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") found.className = value;
    else if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else found.setAttribute(name, value === true ? "" : value);
  }
  found.append(...children.filter((one) => one !== null && one !== undefined));
  return found;
}

/** Says something for a moment; errors stay until they are clicked away. */
export function toast(text, kind = "") {
  const box = document.getElementById("toasts");
  const one = el("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : undefined }, text);
  const gone = () => one.remove();
  one.append(el("button", { class: "quiet", type: "button", "aria-label": "Dismiss", onclick: gone }, "×"));
  box.append(one);
  if (kind !== "bad") setTimeout(gone, 4000);
  return one;
}

export class Refusal extends Error {
  constructor(status, told) {
    super(told.message || `the server answered ${status}`);
    this.status = status;
    this.kind = told.kind || "";
    this.details = told.details || {};
  }
}

/** JSON of the HTTP API. An error is shown, then thrown; `{ quiet: true }` only throws it. */
export async function api(method, path, body, { quiet = false, headers = {}, signal } = {}) {
  const write = method !== "GET";
  const given = { accept: "application/json", ...headers };
  if (body !== undefined) given["content-type"] = "application/json";
  if (write) given["idempotency-key"] ??= once();
  try {
    const answer = await fetch(path, {
      method, signal, headers: given, body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    const told = text ? JSON.parse(text) : null;
    if (answer.status === 401) location.reload();
    if (!answer.ok) throw new Refusal(answer.status, told || {});
    return told;
  } catch (error) {
    if (!quiet && error.name !== "AbortError") toast(error.message, "bad");
    throw error;
  }
}

/** A key under which a request is done once, however often it is sent. */
export function once() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("");
}

/** What a key does on this page, and how the help says it. Not while somebody types. */
export function onKey(key, text, does) {
  keys.set(key, { text, does });
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    const field = el("textarea", { class: "away", readonly: true });
    field.value = text;
    document.body.append(field);
    field.select();
    toast(document.execCommand("copy") ? "Copied" : "Press Ctrl+C to copy");
    field.remove();
  }
}

/** How long ago, in one unit; as drawing.py says it. */
export function since(ms, now = Date.now()) {
  let left = (now - ms) / 1000;
  if (left < 5) return "now";
  for (const [length, unit] of [[60, "s"], [60, "min"], [24, "h"], [30, "d"], [12, "mo"]]) {
    if (left < length) return `${Math.floor(left)} ${unit} ago`;
    left /= length;
  }
  return `${Math.floor(left)} y ago`;
}

export const short = (oid) => oid.slice(0, 12);

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `${THEME}=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
  dispatchEvent(new Event("theme"));
}

function help() {
  const dialog = document.getElementById("help");
  if (dialog.open) return dialog.close();
  const list = dialog.querySelector("dl");
  list.replaceChildren();
  for (const [key, { text }] of keys) {
    list.append(el("dt", {}, el("kbd", {}, SHOWN[key] || key)), el("dd", {}, text));
  }
  dialog.showModal();
}

const SHOWN = {
  ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", Enter: "↵", " ": "space", Escape: "esc",
};

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.(FIELD)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (document.querySelector("dialog[open]") && event.key !== "?") return;
  if ((event.key === "Enter" || event.key === " ") && event.target.closest?.("a, button, summary")) return;
  const found = keys.get(event.key);
  if (found && found.does(event) !== false) event.preventDefault();
});

addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-do], [data-copy]");
  if (!button) return;
  if (button.dataset.copy !== undefined) copy(button.dataset.copy);
  else if (button.dataset.do === "theme") theme();
  else if (button.dataset.do === "help") help();
});

const tab = document.querySelector(".tabs [aria-current]"); // on a phone the last ones are out of sight
if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.offsetLeft + tab.offsetWidth - tab.parentElement.clientWidth;

setInterval(() => {
  for (const one of document.querySelectorAll("time[data-ago]")) {
    const text = since(Date.parse(one.dateTime));
    if (one.textContent !== text) one.textContent = text;
  }
}, 15000);

onKey("?", "This help", help);
onKey("t", "Light or dark", theme);
onKey("/", "Search", () => {
  const field = document.querySelector("input[type=search]");
  if (!field) return false;
  field.focus();
  field.select();
});
onKey("s", "All sessions", () => { location.href = "/"; });
