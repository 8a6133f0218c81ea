// Metrics: a chart for each resource, with a line for each replica.

import { ask, at, clock, el, size, svg } from "/parts.js";

const WIDTH = 360, HEIGHT = 84, MAX_LINES = 16;

const mean = (numbers) => (numbers.length ? numbers.reduce((a, b) => a + b, 0) / numbers.length : null);
const sum = (numbers) => (numbers.length ? numbers.reduce((a, b) => a + b, 0) : null);
const KINDS = [
  ["CPU", (s) => s.cpu, (v) => v.toFixed(1), (r) => r.cpus],
  ["Memory", (s) => s.memory, size, (r) => r.memory_limit],
  ["GPU", (s) => mean(s.gpus.map((g) => g.percent)), (v) => `${Math.round(v)} %`, () => 100],
  ["GPU memory", (s) => sum(s.gpus.map((g) => g.memory)), size, (r) => sum((r.samples.at(-1)?.gpus ?? []).map((g) => g.memory_total))],
];

export class Metrics {
  constructor(handle) {
    this.handle = handle;
    this.box = el("section", { class: "card", "aria-label": "Metrics", hidden: true });
    this.seen = new Map();
  }

  async load() {
    let replicas;
    try {
      ({ replicas } = await ask("metrics", { handle: this.handle }));
    } catch {
      return; // the scheduler reports no metrics
    }
    for (const replica of replicas) { // if the scheduler reports only current values, the page accumulates samples
      const name = `${replica.role}/${replica.replica}`;
      const before = this.seen.get(name)?.samples ?? [];
      if (replica.samples.length === 1) replica.samples = [...before.filter((s) => s.at < replica.samples[0].at), ...replica.samples];
      this.seen.set(name, replica);
    }
    this.draw([...this.seen].slice(0, MAX_LINES));
  }

  draw(replicas) {
    const charts = KINDS.map((kind) => chart(kind, replicas)).filter(Boolean);
    this.box.hidden = !charts.length;
    const left = this.seen.size - replicas.length;
    this.box.replaceChildren(el("h2", {}, "Resources"), el("div", { class: "charts" }, charts), left > 0 ? el("p", { class: "muted" }, `and ${left} more replicas`) : "");
  }
}

function chart([title, value, text, limitOf], replicas) {
  const lines = replicas.map(([name, replica]) => [name, replica.samples.map((s) => [at(s.at), value(s), s.attempt]).filter((p) => p[1] != null), limitOf(replica)]);
  const points = lines.flatMap((line) => line[1]);
  if (points.length < 2) return null;
  const from = Math.min(...points.map((p) => p[0])), to = Math.max(...points.map((p) => p[0]), from + 1);
  const most = Math.max(...points.map((p) => p[1])), limit = Math.max(0, ...lines.map((line) => line[2] ?? 0));
  const top = Math.max(limit, most) || 1;
  const who = lines.find((line) => line[1].some((p) => p[1] === most))[0];
  const said = `peak ${text(most)}${limit && title !== "GPU" ? ` of ${text(limit)}` : ""}${lines.length > 1 ? ` (${who})` : ""}`;
  const x = (t) => (((t - from) / (to - from)) * WIDTH).toFixed(1), y = (v) => (HEIGHT - (v / top) * (HEIGHT - 1)).toFixed(1);
  const drawn = lines.flatMap(([name, found], i) => {
    const attempts = [...new Set(found.map((p) => p[2]))];
    return attempts.map((attempt) => svg("polyline", { class: `use u${i % 8}`, points: found.filter((p) => p[2] === attempt).map((p) => `${x(p[0])},${y(p[1])}`).join(" ") },
      svg("title", {}, `${name}: now ${text(found.at(-1)[1])}, peak ${text(Math.max(...found.map((p) => p[1])))}`)));
  });
  const edge = limit ? [svg("line", { class: "limit", x1: 0, x2: WIDTH, y1: y(limit), y2: y(limit) }, svg("title", {}, `limit ${text(limit)}`))] : [];
  return el("figure", {}, el("figcaption", {}, el("b", {}, title), el("span", { class: "muted" }, said)),
    el("div", { class: "plot" }, el("p", { class: "upward" }, [top, top / 2, 0].map((v) => el("span", {}, text(v)))),
      svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${said}` }, ...edge, ...drawn)),
    el("p", { class: "axis" }, el("span", {}, clock(from)), el("span", {}, clock(to))));
}
