// Shared by all parts of the page: requests, elements, times. Text of a job is never parsed as HTML.

// The address has the token, or a code that this exchanges for it.
async function signIn() {
  const given = new URLSearchParams(location.hash.slice(1)), code = given.get("code");
  if (code || given.has("token")) history.replaceState(null, "", location.pathname + location.search);
  const answer = code && (await fetch("/api/token", { headers: { Authorization: `Code ${code}` } }));
  const token = answer?.ok ? await answer.text() : given.get("token");
  if (token) localStorage.setItem("token", token);
}
const signedIn = signIn().catch(() => {}); // the next request says what is wrong
addEventListener("hashchange", () => location.reload()); // the address of a server that was started again
async function headers() {
  await signedIn;
  return { Authorization: `Bearer ${localStorage.getItem("token") ?? ""}` };
}

async function checked(answer) {
  if (answer.ok) return answer;
  const text = await answer.text();
  let said = {};
  try { said = JSON.parse(text); } catch { said = { error: text }; }
  throw new Error([said.error, said.hint].filter(Boolean).join(" · ") || `the server answered ${answer.status}`);
}

export const address = (path, query = {}) => {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return asked.size ? `${path}?${asked}` : path;
};

export const back = { list: "/" }; // the list as it was filtered

export const ask = async (path, query, options = {}) =>
  (await checked(await fetch(address(`/api/${path}`, query), { headers: await headers(), ...options }))).json();

// Reads JSON lines until the server closes the stream or the signal aborts it.
export async function stream(path, query, signal, take) {
  const answer = await checked(await fetch(address(`/api/${path}`, query), { headers: await headers(), signal }));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let begun = []; // of the last line; adding each chunk to it would take the square of its length
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const end = value.lastIndexOf("\n") + 1;
    if (end) {
      for (const line of [...begun, value.slice(0, end)].join("").split("\n")) if (line) take(JSON.parse(line));
      begun = [];
    }
    begun.push(value.slice(end));
  }
}

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

export function svg(tag, props, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const SIGNS = { RUNNING: "●", SUCCEEDED: "✓", FAILED: "✕", PENDING: "◌", SUBMITTED: "◌", UNSUBMITTED: "◌", CANCELLED: "–" };
export const TERMINAL = new Set(["SUCCEEDED", "FAILED", "CANCELLED"]);
// Shows a state by sign and word, not by colour alone.
export const pill = (state) =>
  el("span", { class: `pill s-${state}` }, el("span", { "aria-hidden": "true" }, SIGNS[state] ?? "?"), ` ${state.toLowerCase()}`);

// Durations, ages and sizes as commands print them: torchx/util/datetime.py and strings.py.
const UNITS = [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]];
export function span(seconds) {
  if (seconds < 10) return `${Math.max(seconds, 0).toFixed(1)} s`;
  const s = Math.floor(seconds), [unit, large, smaller, small] = UNITS.find(([, large]) => s >= large) ?? [];
  if (!unit) return `${s} s`;
  const rest = Math.floor((s % large) / small);
  return `${Math.floor(s / large)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
}
export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  for (; bytes >= 1000 && i < units.length - 1; i++) bytes /= 1024;
  return `${i && bytes < 10 && bytes % 1 >= 0.05 ? bytes.toFixed(1) : Math.round(bytes)} ${units[i]}`;
}
// Local date and time, as 2026-11-29 14:57:07: the locale that writes it in this way.
export const stamp = (seconds) => new Date(seconds * 1000).toLocaleString("sv");
export const clock = (seconds) => stamp(seconds).slice(11);

const now = () => Date.now() / 1000;
export const at = (iso) => (iso ? Date.parse(iso) / 1000 : null);
export function ago(seconds, s = now() - seconds) {
  const [unit, large] = UNITS.find(([, large]) => s >= large) ?? ["s", 1];
  return s < 1 ? "just now" : `${Math.floor(s / large)} ${unit} ago`;
}
export const took = (row) => (row.ended ? span(row.ended - row.created) : TERMINAL.has(row.state) ? "" : span(now() - row.created));

// Converts text with terminal colours into text nodes and spans.
const SGR = /\x1b\[([0-9;]*)m|\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f]/g;
export function coloured(text) {
  const parts = [];
  let from = 0, colour = "", bold = false;
  const add = (piece) => {
    if (piece) parts.push(colour || bold ? el("span", { class: `${colour}${bold ? " b" : ""}` }, piece) : piece);
  };
  for (const match of text.matchAll(SGR)) {
    add(text.slice(from, match.index));
    from = match.index + match[0].length;
    if (match[1] == null) continue;
    for (const code of match[1].split(";").map(Number)) {
      if (code === 0) [colour, bold] = ["", false];
      else if (code === 1) bold = true;
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) colour = `c${code % 10}`;
      else if (code === 39) colour = "";
    }
  }
  add(text.slice(from));
  return parts;
}

let hiding;
export function toast(text) {
  const node = document.getElementById("toast");
  node.textContent = text;
  node.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { node.hidden = true; }, 6000);
}

export async function copy(text) {
  await navigator.clipboard.writeText(text);
  toast(`Copied: ${text}`);
}

// Rows of equal height; the document holds only the visible ones.
export class Rows {
  constructor(frame, height, draw) {
    Object.assign(this, { frame, height, draw, items: [], drawn: "" });
    this.inside = el("div", { class: "rows", role: "presentation" });
    this.window = el("div", { class: "window", role: frame.getAttribute("role") === "table" ? "rowgroup" : "presentation" });
    this.inside.append(this.window);
    frame.append(this.inside);
    frame.addEventListener("scroll", () => this.show(), { passive: true });
    new ResizeObserver(() => this.show(true)).observe(frame);
  }
  set(items) {
    this.items = items;
    this.inside.style.height = `${items.length * this.height()}px`;
    this.show(true);
  }
  show(again = false) {
    const height = this.height();
    const first = Math.max(0, Math.floor(this.frame.scrollTop / height) - 8);
    const last = Math.min(this.items.length, first + Math.ceil(this.frame.clientHeight / height) + 16);
    const key = `${first}-${last}`;
    if (key === this.drawn && !again) return;
    this.drawn = key;
    this.window.style.transform = `translateY(${first * height}px)`;
    this.window.replaceChildren(...this.items.slice(first, last).map((item, i) => this.draw(item, first + i)));
  }
  reveal(index) {
    const height = this.height(), top = index * height, { scrollTop, clientHeight } = this.frame;
    const seen = clientHeight - this.inside.offsetTop; // below the sticky heading
    if (top < scrollTop) this.frame.scrollTop = top;
    else if (top + height > scrollTop + seen) this.frame.scrollTop = top + height - seen;
  }
}
