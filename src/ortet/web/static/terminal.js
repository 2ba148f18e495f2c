// A shell of a session's machine over a WebSocket: xterm.js where it is installed, else lines.
import { toast } from "./base.js";
import { plain } from "./ansi.js";

const session = document.body.dataset.session;
const box = document.getElementById("terminal"), begin = document.getElementById("begin");
const screen = document.getElementById("screen"), state = document.getElementById("state");
const again = document.getElementById("again"), line = document.getElementById("line");
const bytes = new TextEncoder();
let socket = null, shown = null;

/** What xterm.js shows and takes. */
function full() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const term = new window.Terminal({
    convertEol: false, cursorBlink: false, fontFamily: colour("--mono"), fontSize: 13, scrollback: 5000,
    screenReaderMode: true,
  });
  const dress = () => {
    term.options.theme = {
      background: colour("--sunken"), foreground: colour("--ink"), cursor: colour("--accent"),
      cursorAccent: colour("--paper"), selectionBackground: colour("--strong-line"),
    };
  };
  term.open(screen);
  dress();
  addEventListener("theme", dress);
  term.onData((text) => send(text));
  const fit = () => {
    const cell = screen.querySelector(".xterm-screen"), width = cell?.clientWidth / term.cols, height = cell?.clientHeight / term.rows;
    if (!width || !height) return;
    const cols = Math.max(20, Math.floor((screen.clientWidth - 16) / width)), rows = Math.max(5, Math.floor(screen.clientHeight / height));
    if (cols !== term.cols || rows !== term.rows) term.resize(cols, rows);
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ resize: { rows, cols } }));
  };
  new ResizeObserver(fit).observe(screen);
  return { write: (data) => term.write(data), clear: () => term.reset(), size: () => ({ rows: term.rows, cols: term.cols }), focus: () => term.focus(), fit };
}

/** Text that comes out, and a line that goes in. */
function simple() {
  const view = plain(screen);
  screen.tabIndex = 0;
  screen.setAttribute("role", "log");
  line.hidden = false;
  const field = document.getElementById("typed"), past = [];
  let at = 0;
  line.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!send(`${field.value}\n`)) return;
    if (field.value) past.push(field.value);
    at = past.length;
    field.value = "";
  });
  field.addEventListener("keydown", (event) => {
    const key = event.ctrlKey && !event.altKey && !event.metaKey ? event.key.toLowerCase() : "";
    if (key === "c" && field.selectionStart === field.selectionEnd) interrupt(event);
    else if (key === "d") { event.preventDefault(); send("\x04"); }
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      event.preventDefault();
      at = Math.min(past.length, Math.max(0, at + (event.key === "ArrowUp" ? -1 : 1)));
      field.value = past[at] ?? "";
    }
  });
  return { write: view.write, clear: view.clear, size: () => ({ rows: 24, cols: 100 }), focus: () => field.focus(), fit: () => {} };
}

function send(text) {
  if (socket?.readyState !== WebSocket.OPEN) {
    toast("The terminal is not connected.", "bad");
    return false;
  }
  socket.send(bytes.encode(text));
  return true;
}

function interrupt(event) {
  event?.preventDefault();
  send("\x03");
}

async function connect() {
  begin.hidden = true;
  box.hidden = false;
  again.hidden = true;
  shown ??= typeof window.Terminal === "function" ? full() : simple();
  shown.clear();
  say("connecting");
  const { rows, cols } = shown.size();
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(`${scheme}//${location.host}/sessions/${session}/terminal?rows=${rows}&cols=${cols}`);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => { say("connected"); shown.fit(); shown.focus(); };
  socket.onmessage = ({ data }) => (typeof data === "string" ? told(JSON.parse(data)) : shown.write(new Uint8Array(data)));
  socket.onclose = ended;
}

function told(word) {
  if (word.exit !== undefined) say(`the shell ended with code ${word.exit}`);
  else if (word.missed) toast(`${word.missed} bytes came faster than they were read`);
  else if (word.restored) { toast("The machine was restored: this is its shell now"); shown.clear(); }
  else if (word.error) toast(word.error.message, "bad");
}

async function ended({ code }) {
  const ours = this === socket;
  if (!ours) return;
  socket = null;
  again.hidden = false;
  if (code === 1000) return;
  say("not connected");
  if (code !== 1006) return;
  // a browser is not told why it was refused: ask in words
  const answer = await fetch(`/sessions/${session}`, { headers: { accept: "application/json" } }).catch(() => null);
  if (answer?.ok) toast("No terminal could be opened: the session may be held by another process, or have no machine.", "bad");
}

function say(text) {
  state.textContent = text;
  box.dataset.state = text;
}

document.getElementById("start")?.addEventListener("click", connect);
document.getElementById("interrupt").addEventListener("click", () => { interrupt(); shown?.focus(); });
again.addEventListener("click", connect);
addEventListener("pagehide", () => socket?.close(1000));
if (box.dataset.live) connect();
