// The drawing of a tree, row by row: which lanes are open beside a row, and the paths of its edges.

const EVERY = 64; // rows between two places where the open lanes are kept
export const COLOURS = 8;

/** Rows of a tree as they come from the server, in any number of parts. */
export class Rows {
  constructor() {
    this.clear();
  }

  clear() {
    this.tag = "";
    this.total = 0;
    this.lanes = 1;
    this.authors = [];
    this.oid = [];
    this.title = [];
    this.ms = [];
    this.author = [];
    this.lane = [];
    this.to = [];
    this.joins = {};
    this.rest = {};
    this.labels = {};
    this.away = new Set();
    this.at = new Map();
    this.kept = [[]];
  }

  get length() {
    return this.oid.length;
  }

  /** The rows that follow those there are; false when they are of another drawing. */
  add(part) {
    if (part.start !== this.length || (part.start && part.tag !== this.tag)) return false;
    for (const name of ["tag", "total", "lanes", "authors"]) this[name] = part[name];
    for (const name of ["oid", "title", "ms", "author", "lane", "to"]) {
      for (const one of part[name]) this[name].push(one);
    }
    Object.assign(this.joins, part.joins);
    Object.assign(this.rest, part.rest);
    Object.assign(this.labels, part.labels);
    for (const row of part.away) this.away.add(row);
    for (let row = part.start; row < this.length; row++) this.at.set(this.oid[row], row);
    return true;
  }

  /** Lanes that come into a row from above, in order. */
  open(row) {
    const at = Math.min(Math.floor(row / EVERY), this.kept.length - 1);
    let lanes = this.kept[at];
    for (let n = at * EVERY; n < row; n++) {
      lanes = this.below(n, lanes);
      if ((n + 1) % EVERY === 0 && this.kept.length === (n + 1) / EVERY) this.kept.push(lanes);
    }
    return lanes;
  }

  /** Lanes that go out of it. */
  below(row, lanes) {
    const own = this.lane[row];
    const ends = this.joins[row];
    const found = lanes.filter((lane) => lane !== own && !ends?.includes(lane));
    for (const lane of this.targets(row)) if (!found.includes(lane)) found.push(lane);
    return found;
  }

  targets(row) {
    const to = this.to[row];
    return typeof to === "number" ? [to] : to;
  }

  /** From a lane of this row to a lane of the next. */
  edges(row, lanes = this.open(row)) {
    const own = this.lane[row];
    const ends = this.joins[row];
    const into = this.joins[row + 1];
    const end = (lane) => (into?.includes(lane) ? this.lane[row + 1] : lane);
    const found = [];
    for (const lane of lanes) {
      if (lane !== own && !ends?.includes(lane)) found.push([lane, end(lane)]);
    }
    for (const to of this.targets(row)) found.push([own, end(to)]);
    return found;
  }
}

/** The edges above a row as paths, one of each colour: from the middle of the one before to its own. */
export function paths(edges, x, height) {
  const found = new Map();
  for (const [from, to] of edges) {
    const colour = Math.max(from, to) % COLOURS;
    const a = x(from);
    const b = x(to);
    const line = from === to
      ? `M${a} ${-height}V0`
      : `M${a} ${-height}C${a} ${-height * 0.4} ${b} ${-height * 0.6} ${b} 0`;
    found.set(colour, (found.get(colour) || "") + line);
  }
  return found;
}
