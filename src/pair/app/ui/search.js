// Search as you type: one request at a time, then the newest query. Answers to older queries are dropped.

import { get, post } from "./api.js";
import { amount, draw, empty, lifecycleTags, make, places, problem } from "./dom.js";
import { rating } from "./feedback.js";
import { emptyKb } from "./first.js";
import { renderSnippet } from "./markdown.js";
import { amend, current, go, link } from "./route.js";

const HITS = 10;
const SAMPLES = 8;
const WINDOW = 420;
const MODES = [
  ["hybrid", "Hybrid", "Keywords and meaning"],
  ["keyword", "Keyword", "Exact words"],
  ["vector", "Meaning", "Similar meaning"],
  ["graph", "Graph", "Documents linked by the names they mention"],
  ["adaptive", "Adaptive", "Hybrid, and the graph where it helps"],
];
const PARTS = {
  keyword: "keywords",
  vector: "meaning",
  graph: "graph",
  bm25: "keywords, raw (BM25)",
  weight: "share of meaning",
  reranker: "reranker",
};

let input, mode, filter, past, status, list, asked, isAsking;
let rounds = 0;

export function mount(root) {
  input = make("input", {
    id: "q", type: "search", placeholder: "Search the knowledge base", autocomplete: "off", spellcheck: false,
    "aria-describedby": "search-hint", enterkeyhint: "search", "aria-label": "Search",
  });
  mode = make("select", { id: "mode" }, MODES.map(([value, name, text]) => make("option", { value, title: text }, name)));
  filter = make("input", { id: "filter", type: "text", placeholder: "year>=2020, kind!=file", autocomplete: "off", spellcheck: false });
  past = make("div", { class: "row past", role: "status", "aria-live": "polite" });
  status = make("p", { class: "quiet status", role: "status", "aria-live": "polite" });
  list = make("ol", { class: "hits", id: "hits", "aria-label": "Passages found" });
  root.append(
    make("h1", { class: "hidden" }, "Search"),
    make("form", { class: "searching", role: "search", onsubmit: submitted },
      make("div", { class: "big-field" }, input, make("kbd", { "aria-hidden": "true" }, "/")),
      make("div", { class: "row" },
        make("label", { for: "mode" }, "Mode"), mode,
        make("label", { for: "filter" }, "Filter"), filter),
      make("p", { class: "hidden", id: "search-hint" }, "Results appear as you type. Arrow keys move through them.")),
    past, status, list);
  input.addEventListener("input", typed);
  filter.addEventListener("input", typed);
  mode.addEventListener("change", typed);
  root.addEventListener("keydown", moved);
}

export function show(route, isNew) {
  if (input.value !== route.q) input.value = route.q;
  mode.value = route.mode || "hybrid";
  filter.value = route.filter;
  tellVersion(route.at);
  if (isNew && !route.doc && !route.entity && !matchMedia("(pointer: coarse)").matches) input.focus({ preventScroll: true });
  look();
}

function tellVersion(at) {
  if (past.dataset.at === at) return;
  past.dataset.at = at;
  past.replaceChildren(...(at ? [
    make("span", {}, "These results are from ", make("strong", {}, `version ${at}`), ", not from the current version."),
    make("a", { href: link({ at: "" }), onclick: leave }, "Search the current version"),
  ] : []));
}

/** Search for the text that was typed since. */
function leave(event) {
  event.currentTarget.setAttribute("href", link({ at: "" }));
}

function submitted(event) {
  event.preventDefault();
  go(link({ q: input.value, mode: chosenMode(), filter: filter.value }));
  if (matchMedia("(pointer: coarse)").matches) input.blur(); // the keyboard on the screen covers the results
}

function chosenMode() {
  return mode.value === "hybrid" ? "" : mode.value;
}

function typed() {
  amend({ q: input.value, mode: chosenMode(), filter: filter.value });
  look();
}

function wanted() {
  const query = input.value.trim();
  const isJson = filter.value.trim().startsWith("{");
  const conditions = isJson ? [filter.value] : filter.value.split(",").map((each) => each.trim()).filter(Boolean);
  const { kb, at } = current();
  const value = { query, kb_id: kb, k: HITS, search_mode: mode.value, highlights: true, explain: true };
  if (at) value.at = at;
  return conditions.length ? { ...value, filter: conditions } : value;
}

async function look() {
  const name = JSON.stringify([wanted(), rounds]);
  if (name === asked) return;
  asked = name;
  if (isAsking) return;
  isAsking = true;
  list.setAttribute("aria-busy", "true");
  try {
    while (!(await answered(JSON.parse(asked)[0], asked)));
  } finally {
    isAsking = false;
    list.removeAttribute("aria-busy");
  }
}

/** Return whether a result is still wanted; false if it came too late. */
async function answered(question, name) {
  if (!question.query) {
    shown([], question.query, "");
    welcome(name);
    return true;
  }
  try {
    const found = await post("/rag/query", question);
    if (name !== asked) return false;
    const took = `${amount(found.results.length, "passage")} in ${found.took_ms.toFixed(1)} ms`;
    const way = found.mode_used === found.search_mode ? "" : ` · ${found.mode_used}`;
    shown(found.results.map((hit) => card(hit, question)), question.query, took + way + (found.reason ? ` · ${found.reason}` : "") + (found.partial ? " · some shards could not be searched" : ""));
    if (!found.results.length) list.replaceChildren(make("li", { class: "bare" }, empty("No results", "Try other words, another mode or fewer filters.")));
  } catch (fault) {
    if (name !== asked) return false;
    shown([make("li", { class: "bare" }, fault.code === "E201" ? emptyKb() : problem(fault))], question.query, "");
  }
  return true;
}

/** Without a query: what the KB has, or how to fill it. */
async function welcome(name) {
  const { kb, at } = current();
  const parts = [empty("Search this knowledge base", "Type a few words, an error code or a question. Press / to return to this field.")];
  try {
    const { kbs } = await get("/rag/kbs");
    const known = kbs.find((each) => each.kb_id === (kb || "default"));
    if (!known) parts[0] = emptyKb();
    else {
      const { documents } = await get("/rag/docs", { kb_id: kb, at, limit: SAMPLES });
      parts.push(make("section", { class: "samples" },
        make("h2", {}, make("a", { href: link({ view: "documents", at: "" }) }, amount(known.documents, "document"))),
        make("ul", { class: "lines" }, documents.map((each) => make("li", {},
          make("a", { href: link({ doc: each.id, span: "", tab: "", entity: "" }) }, each.title || each.id))))));
    }
  } catch (fault) {
    parts.push(problem(fault));
  }
  if (name === asked && !input.value.trim()) list.replaceChildren(make("li", { class: "bare" }, parts));
}

/** Search again after a change of the KB. */
export function refresh() {
  rounds += 1; // A response to the same question that is on its way does not count.
  if (input) look();
}

function shown(items, query, text) {
  list.replaceChildren(...items);
  list.dataset.for = query;
  status.textContent = text;
}

function card(hit, question) {
  const where = { doc: hit.id, span: `${hit.start}-${hit.end}` };
  const [text, spans] = bestWindow(hit.content, hit.highlights);
  return make("li", { class: "card hit" },
    make("div", { class: "head" },
      make("h2", {}, make("a", { class: "title", href: link({ ...where, tab: "", entity: "" }) }, hit.title || hit.id)),
      score(hit)),
    make("p", { class: "passage" }, renderSnippet(text, { spans })),
    make("div", { class: "foot" },
      make("span", { class: "path" }, hit.id),
      lifecycleTags(hit.lifecycle),
      Object.entries(hit.metadata).slice(0, 4).map(([name, value]) => make("span", { class: "tag" }, `${name}: ${said(value)}`)),
      hit.also_in.length ? make("span", { class: "tag" }, `also in ${hit.also_in_count ?? hit.also_in.length} more`) : null,
      make("span", { class: "row ends" },
        question.at ? null : rating(question.query, question.kb_id, [hit.id], hit.title || hit.id),
        make("a", { class: "quiet-link", href: link({ ...where, tab: "graph", entity: "" }), "aria-label": `Graph around ${hit.title || hit.id}` }, "Graph"))));
}

export function said(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function score(hit) {
  const details = make("details", { class: "why" },
    make("summary", { "aria-label": `Score ${hit.score.toFixed(2)}, show how it was computed` }, meter(hit.score), hit.score.toFixed(2)));
  // Few users open it, and every key makes ten of them.
  details.addEventListener("toggle", () => details.append(explained(hit)), { once: true });
  return details;
}

function explained(hit) {
  const why = hit.explanation || {};
  const rows = Object.entries(why).filter(([name, value]) => name !== "score" && typeof value === "number");
  if (hit.distance !== null) rows.push(["distance", hit.distance]);
  if (hit.graph_score !== null) rows.push(["graph score", hit.graph_score]);
  return make("dl", {},
    make("dt", {}, "mode"), make("dd", {}, why.mode || "–"),
    rows.map(([name, value]) => [make("dt", {}, PARTS[name] || name), make("dd", {}, value.toFixed(3))]));
}

function meter(value) {
  const width = (52 * Math.min(1, Math.max(0, value))).toFixed(1);
  return draw("svg", { class: "meter", viewBox: "0 0 52 6", "aria-hidden": "true" },
    draw("rect", { class: "whole", width: 52, height: 6, rx: 3 }), draw("rect", { class: "part", width, height: 6, rx: 3 }));
}

/** Return the part of a passage with the most matches, and the matches in it. */
function bestWindow(content, highlights) {
  const place = places(content);
  const spans = highlights.map(([start, end]) => [place(start), place(end)]);
  if (content.length <= WINDOW) return [content, highlights];
  let best = 0;
  let most = -1;
  for (const [start] of spans) {
    const inside = spans.filter(([from, to]) => from >= start && to <= start + WINDOW - 60).length;
    if (inside > most) [best, most] = [start, inside];
  }
  let from = Math.max(0, best - 60);
  if (from) from = Math.max(content.indexOf(" ", from), 0) + 1;
  let to = Math.min(content.length, from + WINDOW);
  if (to < content.length) to = Math.max(content.lastIndexOf(" ", to), from + 1);
  const [head, tail] = [from ? "… " : "", to < content.length ? " …" : ""];
  const text = head + content.slice(from, to) + tail;
  const kept = spans.filter(([start, end]) => start >= from && end <= to);
  return [text, inCharacters(text, kept.map(([start, end]) => [start - from + head.length, end - from + head.length]))];
}

/** Convert offsets of JavaScript to offsets of characters, for `marked`. */
function inCharacters(text, spans) {
  return spans.map((span) => span.map((offset) => [...text.slice(0, offset)].length));
}

function moved(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const links = [...list.querySelectorAll("a.title")];
  const at = links.indexOf(document.activeElement);
  if (event.key === "Escape" && at >= 0) input.focus();
  if (!step || (at < 0 && document.activeElement !== input)) return;
  event.preventDefault();
  if (at + step < 0) input.focus();
  else links[Math.min(at + step, links.length - 1)]?.focus();
}

export function focusSearch() {
  input?.focus();
  input?.select();
}
