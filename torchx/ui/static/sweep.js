// The tasks of a sweep: progress, causes of failures, and a square for each task.

import { address, at, el, span } from "/parts.js";

export const KINDS = [["S", "succeeded", "--good"], ["F", "failed", "--bad"], ["U", "unknown", "--off"], ["C", "cancelled", "--off"], ["R", "running", "--run"], ["P", "pending", "--line"]];
const NAMED = 12, FEW = 30;

export class Sweep {
  // `about` returns the values of a task as text.
  constructor(handle, go, about) {
    Object.assign(this, { handle, about });
    this.box = el("section", { class: "card", "aria-label": "Tasks", hidden: true });
    this.sum = el("span", { class: "muted", role: "status" });
    this.bar = el("div", { class: "bar-of-parts", role: "img" });
    this.why = el("div");
    this.grid = el("canvas", { class: "tasks", role: "img", "aria-label": "Tasks by state" });
    this.tip = el("p", { class: "muted" }, "Click a task");
    this.box.append(el("div", { class: "title" }, el("h2", {}, "Tasks"), this.sum), this.bar, this.why, this.grid, this.tip);
    this.grid.addEventListener("click", (event) => { const k = this.under(event); if (k != null) go(address("/run", { handle: `${handle}/${k}` })); });
    this.grid.addEventListener("mousemove", (event) => { const k = this.under(event); if (k != null) this.tip.textContent = [`task ${k}: ${this.word(k)}`, this.about(k)].filter(Boolean).join(" · "); });
    new ResizeObserver(() => this.draw()).observe(this.grid);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(data) {
    this.box.hidden = !data.tasks;
    if (!data.tasks) return;
    this.states = data.tasks.states;
    const total = this.states.length;
    const counts = Object.fromEntries(KINDS.map(([letter]) => [letter, 0]));
    for (const letter of this.states) counts[letter] = (counts[letter] ?? 0) + 1;
    const ended = counts.S + counts.F + counts.U + counts.C;
    const words = KINDS.filter(([letter]) => counts[letter]).map(([letter, word]) => `${counts[letter].toLocaleString()} ${word}`);
    const since = Date.now() / 1000 - at(data.run?.created_at ?? null);
    const left = ended && ended < total && data.run ? `about ${span((since / ended) * (total - ended))} left` : "";
    this.sum.textContent = [`${ended.toLocaleString()} of ${total.toLocaleString()} ended`, ...words, left].filter(Boolean).join(" · ");
    this.bar.setAttribute("aria-label", words.join(", "));
    this.bar.replaceChildren(...KINDS.filter(([letter]) => counts[letter] && letter !== "P").map(([letter, , tone]) => {
      const part = el("span");
      part.style.width = `${(100 * counts[letter]) / total}%`;
      part.style.background = `var(${tone})`;
      return part;
    }));
    const failures = data.tasks.failures;
    this.why.replaceChildren(failures.length ? el("table", {}, el("tbody", {}, failures.map((group) => el("tr", {},
      el("th", { scope: "row" }, group.tasks.length > 1 ? `${group.tasks.length.toLocaleString()} tasks` : "1 task"), el("td", {}, el("span", { class: "tag" }, group.class)), el("td", {}, group.cause),
      el("td", {}, el("span", { class: "muted" }, group.tasks.length > 1 ? "tasks " : "task "), group.tasks.slice(0, NAMED).map((k) => [el("a", { href: address("/run", { handle: `${this.handle}/${k}` }) }, String(k)), " "]),
        group.tasks.length > NAMED ? "..." : ""))))) : "");
    this.grid.hidden = this.tip.hidden = total < FEW; // the table has them all
    this.draw();
  }

  word(k) { return (KINDS.find(([letter]) => letter === this.states[k]) ?? ["", "unknown"])[1]; }

  under(event) {
    const { left, top } = this.grid.getBoundingClientRect();
    const k = Math.floor((event.clientY - top) / this.side) * this.across + Math.floor((event.clientX - left) / this.side);
    return k < (this.states?.length ?? 0) ? k : null;
  }

  draw() {
    const width = this.grid.parentElement?.clientWidth - 32, n = this.states?.length;
    if (!n || !(width > 0)) return;
    this.side = n <= 400 ? 18 : n <= 3000 ? 12 : 7;
    this.across = Math.max(1, Math.floor(width / this.side));
    const height = Math.ceil(n / this.across) * this.side, scale = devicePixelRatio;
    if (this.grid.width !== Math.round(width * scale) || this.grid.height !== Math.round(height * scale)) {
      this.grid.width = Math.round(width * scale);
      this.grid.height = Math.round(height * scale);
      this.grid.style.height = `${height}px`;
    }
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(KINDS.map(([letter, , tone]) => [letter, style.getPropertyValue(tone)]));
    const pen = this.grid.getContext("2d"), gap = this.side > 8 ? 3 : 1;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    for (let k = 0; k < n; k++) {
      pen.fillStyle = colours[this.states[k]] ?? colours.U;
      pen.fillRect((k % this.across) * this.side, Math.floor(k / this.across) * this.side, this.side - gap, this.side - gap);
    }
  }
}
