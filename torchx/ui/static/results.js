// The tasks of a sweep: a table of states, values and results, and a scatter plot of two numbers.

import { address, ask, el, pill, svg } from "/parts.js";
import { KINDS } from "/sweep.js";

const HEIGHT = 320, EDGE = { left: 64, right: 16, top: 12, bottom: 34 };
const MAX_COLUMNS = 12;

export class Results {
  constructor(handle, go) {
    Object.assign(this, { handle, go, tasks: [], loaded: null, states: "", drawn: "", sorted: null });
    this.box = el("section", { class: "card", "aria-label": "Results", hidden: true });
    this.choices = ["x", "y"].map((axis, i) => el("select", { "aria-label": `${axis} axis`, onchange: () => { this.fit(i); this.draw(); } }));
    this.log = ["x", "y"].map((axis) => el("button", { "aria-pressed": "false", title: `logarithmic ${axis} axis`, onclick: (event) => { press(event.target, !pressed(event.target)); this.draw(); } }, "log"));
    this.sum = el("span", { class: "muted" });
    this.plot = el("div", { class: "scatter" });
    this.frame = el("div", { class: "results", tabindex: 0, role: "region", "aria-label": "Results of the tasks" });
    this.axes = el("span", { class: "title" }, this.choices[1], this.log[1], el("span", { class: "muted" }, "against"), this.choices[0], this.log[0]);
    this.box.append(
      el("div", { class: "title" }, el("h2", {}, "Results"), this.sum, el("span", { class: "grow" }), this.axes),
      el("div", { class: "columns" }, this.plot, this.frame));
    new ResizeObserver(() => { if (this.rows && this.plot.clientWidth !== this.width) this.draw(); }).observe(this.plot);
  }

  // Loads the results again when more tasks have ended.
  async show({ states, failures }) {
    const key = states.replaceAll(/[PR]/g, ""), changed = states !== this.states;
    this.states = states;
    this.causes = new Map(failures.flatMap((group) => group.tasks.map((k) => [k, group.cause])));
    if (key !== this.loaded) await this.load(key);
    else if (changed && this.rows) this.table();
  }

  async load(key) {
    this.loaded = key;
    let error;
    try {
      ({ tasks: this.tasks, error } = await ask("results", { handle: this.handle }));
    } catch {
      return; // the page says itself that the server has ended
    }
    const given = Object.keys(this.tasks[0]?.values ?? {});
    const wrote = [...new Set(this.tasks.flatMap((task) => Object.keys(task.metadata)))].filter((name) => !given.includes(name));
    this.box.hidden = !this.tasks.length;
    this.axes.hidden = this.plot.hidden = !wrote.length;
    if (this.box.hidden) return;
    this.rows = this.tasks.map((task) => ({ task: task.task, ...task.metadata, ...task.values }));
    this.columns = [...given, ...wrote];
    const numbers = this.columns.filter((name) => this.rows.some((row) => number(row[name]) != null));
    this.choose(0, numbers, given.find((name) => numbers.includes(name) && new Set(this.rows.map((row) => row[name])).size > 1));
    this.choose(1, numbers, wrote.find((name) => numbers.includes(name)));
    const left = this.columns.length - MAX_COLUMNS;
    this.sum.textContent = error ?? (!wrote.length ? "" : `${this.tasks.filter((t) => Object.keys(t.metadata).length).length.toLocaleString()} tasks have written to the tracker${left > 0 ? `; ${left} more values are not shown` : ""}`);
    if (wrote.length) this.draw();
    this.table();
  }

  word(k) { return (KINDS.find(([letter]) => letter === this.states[k]) ?? ["", "unknown"])[1]; }
  about(k) { return this.rows?.[k] ? this.columns.filter((name) => this.rows[k][name] != null).map((name) => `${name} ${text(this.rows[k][name])}`).join(", ") : ""; }

  // Keeps the selection.
  choose(axis, names, first = "task") {
    const select = this.choices[axis], before = select.value, chosen = before || first;
    select.replaceChildren(...["task", ...names].map((name) => el("option", { value: name, selected: name === chosen }, name)));
    if (!before) this.fit(axis);
  }

  // An axis is logarithmic if its values span two decades.
  fit(axis) {
    const values = this.rows.map((row) => number(row[this.choices[axis].value])).filter((value) => value != null);
    press(this.log[axis], Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) >= 100);
  }

  draw() {
    const names = this.choices.map((choice) => choice.value);
    const logs = this.log.map(pressed);
    const points = this.rows.map((row) => [number(row[names[0]]), number(row[names[1]]), row]).filter(([x, y]) => x != null && y != null && (!logs[0] || x > 0) && (!logs[1] || y > 0));
    if (!points.length) {
      this.plot.replaceChildren(el("p", { class: "muted" }, "No task has both numbers."));
      return;
    }
    this.width = this.plot.clientWidth;
    const right = this.width - EDGE.right;
    const scales = [0, 1].map((i) => scale(points.map((point) => point[i]), logs[i], i ? [HEIGHT - EDGE.bottom, EDGE.top] : [EDGE.left, right]));
    const [x, y] = scales;
    const base = HEIGHT - EDGE.bottom;
    const marks = [
      ...x.ticks.map((v) => [svg("line", { class: "rule", x1: x.to(v), x2: x.to(v), y1: EDGE.top, y2: base }), svg("text", { x: x.to(v), y: base + 15, "text-anchor": "middle" }, short(v))]),
      ...y.ticks.map((v) => [svg("line", { class: "rule", x1: EDGE.left, x2: right, y1: y.to(v), y2: y.to(v) }), svg("text", { x: EDGE.left - 8, y: y.to(v) + 4, "text-anchor": "end" }, short(v))]),
    ].flat();
    const dots = points.map(([a, b, row]) => {
      const dot = svg("circle", { class: "dot", cx: x.to(a).toFixed(1), cy: y.to(b).toFixed(1), r: points.length > 500 ? 2.5 : 4.5 }, svg("title", {}, `task ${row.task}: ${this.about(row.task)}`));
      dot.addEventListener("click", () => this.go(address("/run", { handle: `${this.handle}/${row.task}` })));
      return dot;
    });
    this.plot.replaceChildren(svg("svg", { viewBox: `0 0 ${this.width} ${HEIGHT}`, role: "img", "aria-label": `${names[1]} against ${names[0]}, ${points.length} tasks` },
      ...marks, ...dots,
      svg("text", { class: "name", x: (EDGE.left + right) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, names[0]),
      svg("text", { class: "name", x: -(EDGE.top + base) / 2, y: 13, "text-anchor": "middle", transform: "rotate(-90)" }, names[1])));
  }

  table() {
    const failed = /[FU]/.test(this.states);
    const shown = ["task", "state", ...this.columns.slice(0, MAX_COLUMNS), ...(failed ? ["outcome"] : [])];
    const rows = this.rows.map((row) => ({ ...row, state: this.word(row.task), outcome: this.causes.get(row.task) }));
    const [name, way] = this.sorted ?? ["task", 1];
    const order = (a, b) => way * compare(a[name], b[name]);
    const head = el("tr", {}, shown.map((column) => el("th", { scope: "col", "aria-sort": column === name ? (way > 0 ? "ascending" : "descending") : false },
      el("button", { class: "plain", onclick: () => { this.sorted = [column, column === name ? -way : 1]; this.table(); } }, column, column === name ? (way > 0 ? " ▴" : " ▾") : ""))));
    const cell = { task: (row) => el("a", { href: address("/run", { handle: `${this.handle}/${row.task}` }) }, String(row.task)), state: (row) => pill(row.state.toUpperCase()) };
    const lines = rows.sort(order).slice(0, 500).map((row) => el("tr", {}, shown.map((column) =>
      el("td", { class: column === "outcome" && "bad" }, cell[column]?.(row) ?? text(row[column])))));
    this.frame.replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, lines)),
      this.rows.length > 500 ? el("p", { class: "muted" }, `The first 500 of ${this.rows.length.toLocaleString()} in this order.`) : "");
  }
}

const pressed = (button) => button.getAttribute("aria-pressed") === "true";
const press = (button, on) => button.setAttribute("aria-pressed", String(on));

function number(value) {
  if (typeof value === "string" && !value.trim()) return null;
  const read = typeof value === "string" || typeof value === "number" ? Number(value) : NaN;
  return Number.isFinite(read) ? read : null;
}

const text = (value) => (value == null ? "" : typeof value === "number" ? short(value) : typeof value === "string" ? value : JSON.stringify(value));
const short = (v) => (v && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6) ? v.toExponential(2).replace(/\.?0+e/, "e") : String(+v.toPrecision(5)));

function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  const [p, q] = [number(a), number(b)];
  return p != null && q != null ? p - q : String(a).localeCompare(String(b));
}

// Returns the scale between two edges, and round numbers for its ticks.
function scale(numbers, log, [start, end]) {
  const f = log ? Math.log10 : (v) => v;
  let low = f(Math.min(...numbers)), high = f(Math.max(...numbers));
  if (low === high) [low, high] = [low - (log ? 0.5 : Math.abs(low) / 2 || 1), high + (log ? 0.5 : Math.abs(high) / 2 || 1)];
  const room = (high - low) * 0.04;
  [low, high] = [low - room, high + room];
  const to = (v) => start + ((f(v) - low) / (high - low)) * (end - start);
  const ticks = [];
  if (log && high - low >= 1) for (let e = Math.ceil(low); e <= high; e++) ticks.push(10 ** e);
  else {
    const step = [1, 2, 5, 10].map((m) => m * 10 ** Math.floor(Math.log10((high - low) / 5))).find((s) => (high - low) / s <= 6);
    for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push(log ? 10 ** (i * step) : i * step);
  }
  return { to, ticks };
}
