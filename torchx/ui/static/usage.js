// What runs have used: a bar for each day, and a table by name, user or scheduler.

import { address, ask, back, el, svg } from "/parts.js";

const HEIGHT = 120, WIDTH = 720;
const number = (value, digits = 1) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export function showUsage(main, go) {
  const query = new URLSearchParams(location.search);
  const wanted = { by: query.get("by") ?? "name", days: query.get("days") ?? "30" };
  const pick = (label, key, choices) => el("select", { "aria-label": label, onchange: (event) => go(address("/usage", { ...wanted, [key]: event.target.value }), true) },
    choices.map(([value, name]) => el("option", { value, selected: value === wanted[key] }, name)));
  const box = el("section", { class: "card", "aria-label": "Usage" }, el("p", { class: "muted" }, "adding up"));
  const way = el("nav", { class: "back", "aria-label": "Way back" }, el("a", { href: back.list }, "← Runs"));
  main.append(el("div", {}, way, el("h1", {}, "Usage")), el("div", { class: "filters" },
    pick("Grouped by", "by", [["name", "by name"], ["user", "by user"], ["scheduler", "by scheduler"]]),
    pick("Time", "days", [["7", "last 7 days"], ["30", "last 30 days"], ["365", "last year"]])), box);
  Promise.all([ask("usage", { by: "day", days: wanted.days }), ask("usage", wanted)])
    .then(([days, found]) => box.replaceChildren(chart(days, Number(wanted.days)), table(found)))
    .catch((error) => box.replaceChildren(el("p", { class: "empty" }, error.message)));
  document.title = "torchx: usage";
  return { update() {} };
}

function chart(found, count) {
  const what = found.total.gpu_hours ? ["gpu_hours", "GPU-hours"] : ["cpu_hours", "CPU-hours"];
  const used = new Map(found.groups.map((line) => [line.key, line[what[0]]]));
  const days = Array.from({ length: count }, (_, i) => new Date(Date.now() - (count - 1 - i) * 864e5).toLocaleDateString("sv"));
  const top = Math.max(...used.values(), 1e-9), wide = WIDTH / count;
  const bars = days.map((day, i) => {
    const high = ((used.get(day) ?? 0) / top) * HEIGHT;
    return svg("rect", { x: (i * wide + wide * 0.1).toFixed(2), width: (wide * 0.8).toFixed(2), y: (HEIGHT - high).toFixed(2), height: high.toFixed(2) },
      svg("title", {}, `${day}: ${number(used.get(day) ?? 0)} ${what[1]}`));
  });
  const said = `${number(found.total[what[0]])} ${what[1]} in ${count} days, at most ${number(used.size ? top : 0)} a day`;
  return el("figure", { class: "usage" }, el("figcaption", {}, el("b", {}, what[1]), el("span", { class: "muted" }, ` ${said}`)),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": said }, ...bars),
    el("p", { class: "axis" }, el("span", {}, days[0]), el("span", {}, days.at(-1))));
}

function table({ by, groups, total, currency }) {
  const row = (line) => el("tr", {}, el("td", {}, line.key), [[line.runs, 0], [line.gpu_hours, 1], [line.cpu_hours, 1], ...(currency == null ? [] : [[line.cost ?? 0, 2]])].map(([value, digits]) => el("td", {}, number(value, digits))));
  const heads = [by, "runs", "GPU-hours", "CPU-hours", ...(currency == null ? [] : [`cost ${currency}`])];
  return el("div", { class: "results sums" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((name) => el("th", {}, name)))), el("tbody", {}, groups.map(row)), el("tfoot", {}, row(total))));
}
