// The list of runs. The address holds the search, so that it can be bookmarked and shared.

import { Rows, address, ago, back, el, pill, stamp, took } from "/parts.js";

const STATES = ["RUNNING", "PENDING", "FAILED", "SUCCEEDED", "CANCELLED"];
const SAME = { SUBMITTED: "PENDING", UNSUBMITTED: "PENDING" };
const small = matchMedia("(max-width: 720px)");

export function showRuns(main, rows, go) {
  const query = new URLSearchParams(location.search);
  const wanted = { q: query.get("q") ?? "", state: query.get("state") ?? "", scheduler: query.get("scheduler") ?? "" };
  let shown = [], chosen = 0, pending = false;

  const search = el("input", {
    type: "search", placeholder: "Search by name, id, user, cause   /", "aria-label": "Search runs", value: wanted.q,
    oninput: () => want({ q: search.value }),
  });
  const chips = el("div", { class: "chips", role: "group", "aria-label": "States" });
  const schedulers = el("select", { "aria-label": "Scheduler", onchange: () => want({ scheduler: schedulers.value }) });
  const head = el("div", { class: "row head", role: "row" },
    ["State", "Run", "Scheduler", "Launched", "Took", "Outcome"].map((name) => el("span", { role: "columnheader" }, name)));
  const frame = el("div", { class: "list", tabindex: 0, role: "table", "aria-label": "Runs" });
  const empty = el("p", { class: "empty", hidden: true });
  const clear = el("button", { onclick: () => want({ q: (search.value = ""), state: "", scheduler: "" }) }, "Show all runs");
  frame.append(head);
  main.append(el("h1", { class: "unseen" }, "Runs"), el("div", { class: "filters" }, search, chips, schedulers), frame, empty);
  const list = new Rows(frame, () => (small.matches ? 76 : 44), draw);

  function want(change) {
    Object.assign(wanted, change);
    history.replaceState(null, "", (back.list = address("/", wanted)));
    frame.scrollTop = 0;
    chosen = 0;
    update();
  }

  function draw(row, i) {
    const link = address("/run", { handle: row.handle });
    const message = row.state === "SUCCEEDED" ? "" : row.msg;
    const node = el("div", { class: `row${i === chosen ? " chosen" : ""}`, role: "row", "aria-rowindex": i + 1, onclick: () => go(link) },
      el("span", { role: "cell" }, pill(row.state)),
      el("span", { role: "cell", class: "name" }, el("a", { href: link }, row.name), el("small", {}, row.app_id)),
      el("span", { role: "cell", class: "where" }, row.scheduler),
      el("span", { role: "cell", class: "when", title: stamp(row.created) }, ago(row.created)),
      el("span", { role: "cell", class: "took" }, took(row)),
      el("span", { role: "cell", class: `what${/failed/.test(row.tasks) || row.state === "FAILED" ? " bad" : ""}`, title: message }, row.tasks || message, row.note ? el("em", {}, ` ${row.note}`) : null));
    return node;
  }

  function counts(found) {
    const counted = {};
    for (const row of found) {
      const state = SAME[row.state] ?? row.state;
      counted[state] = (counted[state] ?? 0) + 1;
    }
    const chip = (state, label, n) => el("button", {
      class: "chip", "aria-pressed": String(wanted.state === state), onclick: () => want({ state: wanted.state === state ? "" : state }),
    }, `${label} `, el("b", {}, n.toLocaleString()));
    const states = [...STATES, ...Object.keys(counted).filter((state) => !STATES.includes(state))];
    chips.replaceChildren(chip("", "all", found.length), ...states.filter((s) => counted[s] || s === wanted.state).map((s) => chip(s, s.toLowerCase(), counted[s] ?? 0)));
    const names = [...new Set([...rows.values()].map((row) => row.scheduler))].sort();
    schedulers.hidden = names.length < 2;
    schedulers.replaceChildren(el("option", { value: "" }, "all schedulers"),
      ...names.map((name) => el("option", { value: name, selected: name === wanted.scheduler }, name)));
  }

  function matches(row, words) {
    if (wanted.scheduler && row.scheduler !== wanted.scheduler) return false;
    if (!words.length) return true;
    const text = `${row.name} ${row.handle} ${row.user} ${row.msg}`.toLowerCase();
    return words.every((word) => text.includes(word));
  }

  function draw_all() {
    pending = false;
    const words = wanted.q.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...rows.values()].filter((row) => matches(row, words));
    counts(found);
    shown = found.filter((row) => !wanted.state || (SAME[row.state] ?? row.state) === wanted.state).sort((a, b) => b.order - a.order);
    chosen = Math.max(0, Math.min(chosen, shown.length - 1));
    frame.setAttribute("aria-rowcount", shown.length);
    list.set(shown);
    frame.hidden = !shown.length;
    empty.hidden = shown.length > 0;
    if (!shown.length) empty.replaceChildren(...(rows.size ? ["No run matches. ", clear] : ["No runs yet. In a shell: torchx run train.py"]));
  }

  function update() {
    if (!pending) requestAnimationFrame(draw_all);
    pending = true;
  }

  function key(name) {
    if (name === "/") search.focus();
    else if (name === "ArrowDown" || name === "j") move(1);
    else if (name === "ArrowUp" || name === "k") move(-1);
    else if (name === "Enter" && shown[chosen]) go(address("/run", { handle: shown[chosen].handle }));
    else return false;
    return true;
  }

  function move(by) {
    chosen = Math.max(0, Math.min(shown.length - 1, chosen + by));
    list.reveal(chosen);
    list.show(true);
  }

  back.list = address("/", wanted);
  document.title = "torchx: runs";
  return { update, key, tick: () => list.show(true) };
}
