// Output of a terminal as text: lines that can be written over, colours left out, the rest dropped.

const MOST = 4000; // lines that are kept

/** Shows what a program writes in an element; what it writes is text, whatever it holds. */
export function plain(into) {
  const decoder = new TextDecoder();
  const area = document.createElement("pre");
  area.className = "output";
  into.replaceChildren(area);
  let lines = [[]], column = 0, rest = "", drawn = false;

  function write(data) {
    const text = rest + decoder.decode(data, { stream: true });
    rest = "";
    for (let at = 0; at < text.length;) {
      if (text[at] === "\x1b") {
        const found = sequence(text.slice(at, at + 4096));
        if (found === null) { rest = text.slice(at); break; }
        control(found);
        at += found.length;
      } else {
        put(text[at]);
        at += 1;
      }
    }
    if (lines.length > MOST) lines = lines.slice(-MOST);
    if (!drawn) { drawn = true; requestAnimationFrame(draw); }
  }

  function draw() {
    drawn = false;
    const below = into.scrollHeight - into.scrollTop - into.clientHeight < 40;
    area.textContent = lines.map((one) => Array.from(one, (char) => char ?? " ").join("")).join("\n");
    if (below) into.scrollTop = into.scrollHeight;
  }

  function put(char) {
    if (char === "\n") { lines.push([]); column = 0; }
    else if (char === "\r") column = 0;
    else if (char === "\b") column = Math.max(0, column - 1);
    else if (char === "\t") column += 8 - (column % 8);
    else if (char >= " ") { lines.at(-1)[column] = char; column += 1; }
  }

  function control(found) {
    const last = found.at(-1);
    if (found === "\x1bc" || found === "\x1b[2J" || found === "\x1b[3J") { lines = [[]]; column = 0; }
    else if (last === "K" && found[1] === "[") lines.at(-1).length = Math.min(column, lines.at(-1).length);
    else if (last === "G" && found[1] === "[") column = Math.max(0, (parseInt(found.slice(2), 10) || 1) - 1);
    else if (last === "D" && found[1] === "[") column = Math.max(0, column - (parseInt(found.slice(2), 10) || 1));
    else if (last === "C" && found[1] === "[") column += parseInt(found.slice(2), 10) || 1;
  }

  return { write, clear: () => { lines = [[]]; column = 0; rest = ""; area.textContent = ""; } };
}

/** The escape sequence that a text begins with; null: its end has not come yet. */
function sequence(text) {
  const whole = /^\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]+[0-~]|[^[\]PX^_ -/])/.exec(text);
  if (whole) return whole[0];
  return text.length >= 4096 ? "\x1b" : null;
}
