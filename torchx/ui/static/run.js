// The page of a run: state and cause, timeline, log, definition.

import { TERMINAL, address, ago, ask, at, back, clock, copy, el, pill, span, stamp, toast, took } from "/parts.js";
import { showLog } from "/log.js";
import { Metrics } from "/metrics.js";
import { Results } from "/results.js";
import { Sweep } from "/sweep.js";

const MAX_BARS = 40, MAX_ATTEMPTS = 20;
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

export function showRun(main, handle, rows, go) {
  let data = null, log = null, seen = "", asking = false, closed = false, loads = 0;
  const head = el("div", { class: "runhead" });
  const why = el("div", { class: "stack" });
  const metrics = new Metrics(handle), results = new Results(handle, go), sweep = new Sweep(handle, go, (k) => results.about(k));
  const times = el("section", { class: "card", "aria-label": "Timeline", hidden: true });
  const roles = el("section", { class: "card", "aria-label": "Replicas", hidden: true });
  const logs = el("div");
  const more = el("div", { class: "columns" });
  main.append(head, why, sweep.box, results.box, el("div", { class: "columns" }, roles, times), more, logs, metrics.box);
  const evidence = () => {
    const found = data?.status?.cause;
    return { text: found?.error?.message?.split("\n").at(-1) || found?.evidence, who: found && `${found.role}/${found.replica}` };
  };

  async function load() {
    if (asking || closed) return;
    asking = true;
    try {
      data = await ask("run", { handle });
    } catch (error) {
      if (!data) main.replaceChildren(el("p", { class: "empty" }, error.message));
      return;
    } finally {
      asking = false;
    }
    if (closed) return;
    draw();
    if (!data.tasks && (loads++ % 5 === 0 || TERMINAL.has(data.status?.state))) metrics.load(); // about every 15 s
  }

  function draw() {
    const kept = data.run ? { created: at(data.run.created_at), ended: at(data.run.ended_at) } : {};
    const run = { ...data.run, ...kept, ...rows.get(data.handle), ...(data.status ? { state: data.status.state } : {}) };
    const name = run.name || data.app_id;
    document.title = `${name}: ${(run.state ?? "unknown").toLowerCase()} · torchx`;
    const [, job, task] = data.handle.match(/^(.*:\/\/.*\/.*)\/(\d+)$/) ?? [];
    head.replaceChildren(
      el("nav", { class: "back", "aria-label": "Way back" }, el("a", { href: back.list }, "← Runs"),
        job ? [" / ", el("a", { href: address("/run", { handle: job }) }, rows.get(job)?.name ?? job), ` / task ${task}`] : null),
      el("div", { class: "title" }, el("h1", {}, name), pill(run.state ?? "UNKNOWN"), el("span", { class: "grow" }), el("span", { class: "actions" }, actions(run))),
      el("p", { class: "facts" }, el("code", {}, data.handle), fact(run.created && `launched ${ago(run.created)}`, run.created && stamp(run.created)),
        fact(run.user && `by ${run.user} on ${run.host}`), fact(lasted(run)),
        fact(data.total || (data.status?.num_restarts > 0 && `${data.status.num_restarts} restart${data.status.num_restarts === 1 ? "" : "s"}`)),
        fact(run.git_commit && `commit ${run.git_commit.slice(0, 9)}${run.git_dirty ? " and changes" : ""}`)));
    why.replaceChildren(cause(run) ?? "", pace() ?? "");
    sweep.show(data);
    if (data.tasks) results.show(data.tasks);
    drawRoles();
    drawTimes();
    if (data.tasks && !more.childNodes.length) more.replaceChildren(...details());
    if (!log && !data.tasks) {
      const parts = (data.status?.roles ?? []).flatMap((role) => role.replicas.map((replica) => `${role.role}/${replica.id}`));
      if (parts.length || TERMINAL.has(run.state)) {
        log = showLog(data.handle, parts, evidence);
        logs.replaceChildren(log.box);
        more.replaceChildren(...details());
      }
    }
    log?.state(run.state, TERMINAL.has(run.state));
  }

  function lasted(run) {
    if (TERMINAL.has(run.state)) return run.ended && `took ${took(run)}`;
    const began = Math.min(...(data.status?.roles ?? []).flatMap((role) => role.replicas.map((r) => at(r.started_at) ?? Infinity)));
    if (run.state === "RUNNING") return `running for ${span(Date.now() / 1000 - (Number.isFinite(began) ? began : run.created))}`;
    return run.created && `waiting for ${span(Date.now() / 1000 - run.created)}`;
  }

  const commandLine = () => (data.argv.length ? ["torchx", ...data.argv.slice(1)].map(quoted).join(" ") : "");
  const fact = (text, title) => (text ? el("span", { title }, text) : null);

  function actions(run) {
    const command = commandLine();
    const ended = TERMINAL.has(run.state);
    return [
      command ? el("button", { onclick: () => copy(command), title: command }, "Copy command") : null,
      ended && allowed.has("rerun") ? el("button", { onclick: rerun }, "Run again") : null,
      !ended && allowed.has("cancel") ? el("button", { class: "danger", onclick: cancel }, "Cancel") : null,
    ];
  }

  async function act(verb, question, done) {
    if (!confirm(question)) return;
    try {
      done(await ask(`do/${verb}`, { handle: data.handle }, { method: "POST" }));
    } catch (error) {
      toast(error.message);
    }
  }
  const cancel = () => act("cancel", `Cancel ${data.app_id}?`, () => { toast("Cancelling"); load(); });
  const rerun = () => act("rerun", `Run ${data.app_id} again?`, (again) => go(address("/run", { handle: again.handle })));

  function pace() {
    const found = data.status?.progress;
    return found && el("section", { class: "card", "aria-label": "Progress" }, el("h2", {}, "Progress"),
      found.total ? el("progress", { max: found.total, value: found.step }) : null,
      data.pace.map(([, text]) => el("p", { class: "sentence" }, text)));
  }

  function cause(run) {
    const found = data.status?.cause;
    const text = data.error ?? data.status?.msg ?? run.msg;
    if (!text || run.state === "SUCCEEDED" || data.tasks) return null; // a sweep's tasks have a section
    const failed = run.state === "FAILED";
    const traceback = found?.error?.traceback;
    return el("section", { class: `card why${failed ? " failed" : ""}`, "aria-label": failed ? "Cause" : "State" },
      el("div", { class: "title" }, el("h2", {}, failed ? "Cause" : run.state === "PENDING" ? "Why it waits" : "Note"),
        found ? el("span", { class: "tag" }, found.class) : null,
        found?.host ? el("span", { class: "muted" }, `on ${found.host}`) : null),
      el("p", { class: "sentence" }, text),
      traceback ? el("details", {}, el("summary", {}, "Traceback"), el("pre", { tabindex: 0 }, traceback)) : null);
  }

  function drawRoles() {
    const found = data.status?.roles ?? [];
    roles.hidden = found.reduce((n, role) => n + role.replicas.length, 0) < 2;
    const key = JSON.stringify(found);
    if (key === seen) return;
    seen = key;
    roles.replaceChildren(el("h2", {}, "Replicas"), ...found.map((role) => {
      const counts = {};
      for (const replica of role.replicas) counts[replica.state] = (counts[replica.state] ?? 0) + 1;
      const sum = Object.entries(counts).map(([state, n]) => `${n} ${state.toLowerCase()}`).join(", ");
      return el("div", { class: "role" }, el("p", {}, el("b", {}, role.role), el("span", { class: "muted" }, [sum, ...order(role)].join("; "))),
        el("div", { class: "cells" }, role.replicas.map((replica) => {
          const label = `${role.role}/${replica.id} ${replica.state.toLowerCase()}${replica.hostname ? ` on ${replica.hostname}` : ""}`;
          return el("button", { class: `cell s-${replica.state}`, title: `${label}${replica.error ? `\n${replica.error.summary}` : ""}`, "aria-label": label,
            onclick: () => log?.choose(`${role.role}/${replica.id}`) }, role.replicas.length <= 64 ? String(replica.id) : "");
        })));
    }));
  }

  function order(role) {
    const times = role.replicas.map((replica) => at(replica.ready_at)).filter(Boolean).sort((a, b) => a - b);
    const begun = times.length || role.replicas.some((replica) => replica.started_at || replica.state === "RUNNING");
    const since = Math.min(...role.replicas.map((replica) => at(replica.started_at) ?? Infinity));
    const when = times.length >= role.ready?.needed && Number.isFinite(since) ? ` after ${span(times[role.ready.needed - 1] - since)}` : "";
    const ready = role.ready && begun && `${times.length ? "" : "not "}ready (${times.length} of ${role.ready.needed})${when}`;
    return [role.after.length && `after ${role.after.join(", ")}`, ready, role.ends_job && "ends the job"].filter(Boolean);
  }

  function drawTimes() {
    const { from: begin, to, bars } = data.timeline ?? { bars: [] };
    times.hidden = !bars.length;
    if (times.hidden) return;
    const end = to ?? Date.now() / 1000;
    const whole = Math.max(end - begin, 0.001);
    const earlier = Math.max((data.status?.attempts ?? []).length - MAX_ATTEMPTS, 0);
    const shown = bars.slice(earlier, earlier + MAX_BARS);
    times.replaceChildren(el("h2", {}, "Timeline"), ...shown.map((bar) => {
      const block = el("span", { class: `bar s-${bar.state}` });
      block.style.left = `${(100 * (bar.from - begin)) / whole}%`;
      block.style.width = `${Math.max(0.4, (100 * ((bar.to ?? end) - bar.from)) / whole)}%`;
      const lasted = span((bar.to ?? end) - bar.from);
      return el("div", { class: "gantt", title: [bar.state.toLowerCase(), bar.text, lasted].filter(Boolean).join(" · ") }, el("span", { class: "label" }, bar.name), el("span", { class: "track" }, block), el("span", { class: "lasted" }, lasted));
    }), bars.length > shown.length ? el("p", { class: "muted" }, `and ${bars.length - shown.length} more`) : "",
    el("p", { class: "axis" }, el("span", {}, clock(begin)), el("span", {}, clock(end))));
  }

  function details() {
    const section = (name, node) => el("details", { class: "card" }, el("summary", {}, el("h2", {}, name)), node);
    const given = Object.entries(data.cfg).filter(([, option]) => option.source !== "default");
    const options = el("table", { class: "options" }, el("tbody", {}, given.map(([name, option]) =>
      el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, JSON.stringify(option.value)), el("td", { class: "muted" }, option.source)))));
    const command = commandLine();
    return [
      command ? section("Command", el("pre", { tabindex: 0 }, `cd ${quoted(data.run?.cwd ?? ".")}\n${command}`)) : null,
      given.length ? section(`Options of ${data.scheduler}`, options) : null,
      data.app ? section("Job definition", el("pre", { tabindex: 0 }, JSON.stringify(data.app, null, 2))) : null,
    ].filter(Boolean);
  }

  let last = "", beats = 0;
  const allowed = new Set();
  ask("settings").then((settings) => { settings.allowed.forEach((name) => allowed.add(name)); if (data) draw(); }, () => {});
  return {
    update() {
      const row = rows.get(handle);
      const key = row ? JSON.stringify(row) : "";
      if (key !== last || !data) load();
      last = key;
    },
    tick() {
      beats += 1;
      if (data && !TERMINAL.has(data.status?.state)) beats % 3 ? draw() : load();
    },
    key(name) {
      if (name === "/") log?.find();
      else if (name === "f") log?.jump();
      else return false;
      return true;
    },
    close() { closed = true; log?.close(); },
  };
}
