// Elements from data. Text is always set as text, so the text of a document cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** `make("a", {href: "#/x", onclick: go}, "text", child)` */
export function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** The state of a document as tags, shown before its text. */
export function lifecycleTags(state) {
  if (!state) return null;
  const verified = state.verified_by ? `verified by a ${state.verified_by}${state.verified_at ? ` on ${state.verified_at.slice(0, 10)}` : ""}` : "";
  const warnings = [state.status, state.stale_since ? `stale since ${state.stale_since}` : ""];
  return [
    ...warnings.filter(Boolean).map((text) => badge(text, "warn")),
    verified ? make("span", { class: "tag" }, verified) : null,
  ];
}

/** Where characters begin in a string: the server counts characters, JavaScript counts halves of some. */
export function places(text) {
  if (!/[\ud800-\udbff]/.test(text)) return (index) => index;
  const starts = [];
  let offset = 0;
  for (const character of text) {
    starts.push(offset);
    offset += character.length;
  }
  return (index) => (index < starts.length ? starts[index] : offset);
}

/** The text with these [start, end] in <mark>. */
export function marked(text, spans, attributes = {}) {
  const place = places(text);
  const parts = [];
  let done = 0;
  for (const [start, end] of spans) {
    const from = Math.max(place(start), done);
    const to = place(end);
    if (to <= from) continue;
    parts.push(text.slice(done, from), make("mark", attributes, text.slice(from, to)));
    done = to;
  }
  parts.push(text.slice(done));
  return parts;
}

export const count = new Intl.NumberFormat("en");

export function amount(number, noun) {
  return `${count.format(number)} ${noun}${number === 1 ? "" : "s"}`;
}

export function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = number;
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${size < 10 && unit ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** A duration such as "5 minutes" or "90 seconds". */
export function interval(seconds) {
  return seconds >= 60 && seconds % 60 === 0 ? amount(seconds / 60, "minute") : amount(seconds, "second");
}

const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

/** A relative time such as "5 minutes ago", with the exact time as a tooltip. */
export function when(timestamp) {
  const instant = new Date(timestamp || NaN);
  if (Number.isNaN(instant.getTime())) return document.createTextNode("–");
  const seconds = (instant.getTime() - Date.now()) / 1000;
  const [size, unit] = [[86400, "day"], [3600, "hour"], [60, "minute"]].find(([each]) => Math.abs(seconds) >= each) || [1, "second"];
  const said = Math.abs(seconds) < 10 ? "just now" : words.format(Math.round(seconds / size), unit);
  return make("time", { datetime: timestamp, title: instant.toLocaleString() }, said);
}

export function badge(text, kind = "") {
  return make("span", { class: `badge ${kind}` }, text);
}

export function problem(fault) {
  const parts = [make("strong", {}, fault.message || String(fault))];
  if (fault.suggestion) parts.push(make("span", {}, fault.suggestion));
  if (fault.code) parts.push(make("span", { class: "quiet" }, fault.code));
  return make("div", { class: "problem", role: "alert" }, parts);
}

export function empty(title, text) {
  return make("div", { class: "empty" }, make("strong", {}, title), make("p", {}, text));
}

/** Say that a list is loading, unless it still shows what it showed before. */
export function loading(list) {
  list.setAttribute("aria-busy", "true");
  if (!list.childElementCount) list.append(make(/^[OU]L$/.test(list.tagName) ? "li" : "p", { class: "loading quiet" }, "Loading…"));
}

/** Show what was loaded. */
export function loaded(list, ...children) {
  list.removeAttribute("aria-busy");
  list.replaceChildren(...children.flat());
}

/** Ask for confirmation: `{title, text, no, yes}` are the texts of the dialog and its two buttons. */
export async function confirmed(asked) {
  const dialog = document.getElementById("confirm");
  for (const [name, text] of Object.entries(asked)) document.getElementById(`confirm-${name}`).textContent = text;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  return dialog.returnValue === "yes";
}

let fading = 0;

/** Show a short message at the bottom of the page. */
export function say(text) {
  const notice = document.getElementById("notice");
  notice.textContent = text;
  notice.classList.add("shown");
  clearTimeout(fading);
  fading = setTimeout(() => notice.classList.remove("shown"), 5000);
}
