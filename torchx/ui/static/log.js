// A log: follows, searches, and jumps to the failure. The document holds only the visible lines.

import { Rows, coloured, el, stream } from "/parts.js";

const MAX = 200_000;
const LINE = 19;
const WRONG = /^Traceback \(most recent call last\)|^\S*(Error|Exception)\b.*:|\b(CUDA error|Segmentation fault|Killed|panic:|FATAL)\b/;

// `evidence` returns the text of the failure's line, and the replica that wrote it.
export function showLog(target, parts, evidence) {
  let lines = [], found = [], at = -1, hurried = false, complete = false, failed = false, from = new AbortController();
  const many = parts.length > 1;
  const part = el("select", { "aria-label": "Replica", onchange: open },
    many ? el("option", { value: "" }, "all replicas") : null, parts.map((name) => el("option", { value: many ? name : "" }, name)));
  const output = el("select", { "aria-label": "Stream", onchange: open },
    [["", "output"], ["stdout", "stdout"], ["stderr", "stderr"]].map(([value, name]) => el("option", { value }, name)));
  const find = el("input", { type: "search", placeholder: "Find in log", "aria-label": "Find in log", oninput: () => search(), onkeydown: step });
  const count = el("span", { class: "count", role: "status" });
  const wrong = el("button", { onclick: jump }, "Jump to failure");
  const following = el("button", { "aria-pressed": "true", onclick: () => keep(following.getAttribute("aria-pressed") !== "true") }, "Follow");
  const frame = el("div", { class: "log", tabindex: 0, role: "log", "aria-label": "Log", "aria-live": "off", onwheel: unfollow, ontouchmove: unfollow, onkeydown: unfollow });
  const list = new Rows(frame, () => LINE, draw);
  const box = el("section", { class: "card logcard", "aria-label": "Log" },
    el("div", { class: "tools" }, el("h2", {}, "Log"), part, output, find, count, wrong, following), frame);

  function draw(line, i) {
    const hit = at >= 0 && found[at] === i;
    const name = many && !part.value && line.role ? el("span", { class: "who" }, `${line.role}/${line.replica} `) : null;
    return el("div", { class: `line${hit ? " hit" : ""}${line.error ? " wrong" : ""}` }, name, coloured(line.line ?? line.error));
  }

  function keep(on) {
    following.setAttribute("aria-pressed", String(on));
    if (on) frame.scrollTop = frame.scrollHeight;
  }
  function unfollow(event) {
    if (event.type !== "keydown" || ["ArrowUp", "PageUp", "Home"].includes(event.key)) if (event.deltaY === undefined || event.deltaY < 0) keep(false);
  }

  function refresh() {
    hurried = false;
    list.set(lines);
    if (following.getAttribute("aria-pressed") === "true") frame.scrollTop = frame.scrollHeight;
    if (find.value) search(false);
  }

  function take({ lines: more }) {
    for (const line of more) lines.push(line);
    if (lines.length > MAX) lines = lines.slice(-MAX);
    if (!hurried) requestAnimationFrame(refresh);
    hurried = true;
  }

  async function open() {
    from.abort();
    from = new AbortController();
    lines = [];
    complete = false;
    refresh();
    const { signal } = from;
    try {
      await stream("log", { handle: target, part: part.value, stream: output.value }, signal, (batch) => signal.aborted || take(batch));
      if (signal.aborted) return;
      if (!lines.length) take({ lines: [{ line: "It wrote nothing." }] });
      complete = true;
      settle();
    } catch (error) {
      if (!signal.aborted) take({ lines: [{ error: error.message }] });
    }
  }

  function search(move = true) {
    const text = find.value.toLowerCase();
    found = text ? lines.flatMap((line, i) => ((line.line ?? "").toLowerCase().includes(text) ? [i] : [])) : [];
    if (move) at = found.length - 1;
    tell();
    if (move && at >= 0) show(found[at]);
    else list.show(true);
  }
  function tell() { count.textContent = find.value ? (found.length ? `${at + 1} of ${found.length}` : "not found") : ""; }
  function step(event) {
    if (event.key !== "Enter" || !found.length) return;
    at = (at + (event.shiftKey ? -1 : 1) + found.length) % found.length;
    tell();
    show(found[at]);
  }
  function show(i) {
    keep(false);
    frame.scrollTop = Math.max(0, i * LINE - frame.clientHeight / 3);
    list.show(true);
  }

  // Once a job that failed has no more lines, a reader who followed them is shown the failure.
  function settle() {
    if (complete && failed && following.getAttribute("aria-pressed") === "true") requestAnimationFrame(() => { refresh(); jump(); });
  }

  function state(name, over) {
    following.hidden = over;
    wrong.hidden = name !== "FAILED";
    const before = failed;
    failed = name === "FAILED";
    if (failed !== before) settle();
  }

  function jump() {
    const { text, who } = evidence();
    const last = (its) => (text ? lines.findLastIndex((line) => line.line?.includes(text) && its(line)) : -1);
    let i = last((line) => `${line.role}/${line.replica}` === who);
    if (i < 0) i = last(() => true);
    if (i < 0) i = lines.findIndex((line) => WRONG.test(line.line ?? ""));
    if (i < 0) { count.textContent = "nothing that looks like a failure"; return; }
    // The last line of a traceback was found; show its beginning.
    for (let j = i; j >= Math.max(0, i - 60); j--) if (/^Traceback/.test(lines[j].line ?? "")) { at = 0; found = [i]; show(j); return; }
    at = 0;
    found = [i];
    show(i);
  }

  open();
  return {
    box,
    close: () => from.abort(),
    choose: (name) => { part.value = name; open(); box.scrollIntoView({ block: "start" }); },
    find: () => find.focus(),
    state,
    jump,
  };
}
