// A conversation: each question, its answer while it is written, and the passages that it cites.

import { events } from "./api.js";
import { badge, empty, lifecycleTags, make, problem } from "./dom.js";
import { rating } from "./feedback.js";
import { emptyKb } from "./first.js";
import { renderMarkdown, renderSnippet } from "./markdown.js";
import { amend, current, link } from "./route.js";

const WINDOW = 360;
const LEAD = 80;
const MOST_TURNS = 20;
let field, button, restart, output, asking, kbShown;
let turns = [];

export function mount(root) {
  field = make("textarea", { id: "question", rows: 2, placeholder: "How do I …?", "aria-label": "Question", enterkeyhint: "send" });
  button = make("button", { type: "submit", class: "primary" }, "Ask");
  restart = make("button", { type: "button", class: "plain", hidden: true, onclick: startAgain }, "New conversation");
  output = make("section", { class: "answering", "aria-label": "Answer", "aria-live": "polite", "aria-busy": "false" });
  root.append(
    make("h1", { class: "hidden" }, "Ask"),
    make("form", { class: "asking", onsubmit: submit }, field,
      make("div", { class: "row between" }, make("p", { class: "quiet" }, "Answers quote and cite this knowledge base. Press Enter to ask."),
        make("div", { class: "row" }, restart, button))),
    output);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  clear();
}

function clear() {
  asking?.abort();
  turns = [];
  restart.hidden = true;
  field.placeholder = "How do I …?";
  output.replaceChildren(empty("Ask a question", "The answer shows the source of each of its statements."));
}

function startAgain() {
  clear();
  amend({ q: "" });
  field.value = "";
  field.focus();
}

/** A question in the address is asked when the page loads, not when the user comes from another view. */
export function show(route, isNew, isFirst) {
  if (kbShown !== undefined && kbShown !== route.kb) clear();
  kbShown = route.kb;
  if (restart.hidden && field.value !== route.q && document.activeElement !== field) field.value = route.q;
  if (isNew && !route.doc && !route.entity && !matchMedia("(pointer: coarse)").matches) field.focus({ preventScroll: true });
  if (route.q && isFirst) ask(route.q);
}

function submit(event) {
  event.preventDefault();
  const query = field.value.trim();
  if (!query) return;
  amend({ q: query });
  ask(query);
}

/** Ask, with the earlier questions and answers, so that a question may refer to them. The newest is on top. */
async function ask(query) {
  asking?.abort();
  const mine = (asking = new AbortController());
  const kb = current().kb;
  const written = make("p", { class: "writing" });
  const answer = make("div", {}, make("article", { class: "card answer" }, make("p", { class: "quiet thinking" }, "Searching…"), written));
  const turn = make("section", { class: "turn" }, make("h2", { class: "question" }, query), answer);
  if (restart.hidden) output.replaceChildren();
  output.prepend(turn);
  output.setAttribute("aria-busy", "true");
  restart.hidden = false;
  field.value = "";
  field.placeholder = "Ask a follow-up question";
  try {
    const context = { metadata: { conversation: turns.slice(-MOST_TURNS) } };
    for await (const { event, data } of events("/ask", { query, kb_id: kb, context }, mine.signal)) {
      if (event === "text") {
        answer.querySelector(".thinking")?.remove();
        written.append(data.text);
      }
      if (event !== "response") continue;
      answer.replaceChildren(...showResponse(data, query, kb));
      if (data.answer) turns.push({ role: "user", content: query }, { role: "assistant", content: data.answer });
    }
  } catch (fault) {
    if (fault.name === "AbortError") {
      turn.remove();
      return;
    }
    answer.replaceChildren(fault.code === "E201" ? emptyKb() : problem(fault));
  }
  if (asking === mine) output.setAttribute("aria-busy", "false");
}

/** The three outcomes look different: an answer, passages without a claim, or nothing. */
function showResponse(response, query, kb) {
  const sources = response.sources || [];
  const outcome = response.metadata?.outcome || "answer";
  const parts = [];
  if (response.error) parts.push(isEmptyKb(response.error) ? emptyKb() : problem(response.error));
  if (response.answer) {
    const cite = (number) => (sources[number - 1] ? citation(sources[number - 1], number, response.answer) : null);
    parts.push(make("div", { class: "prose" }, renderMarkdown(response.answer, { cite })));
    parts.push(make("div", { class: "row facts" }, outcome === "answer" ? confidence(response) : null, ...labels(response),
      rating(query, kb, citedDocuments(sources, kb), "this answer")));
  }
  const card = make("article", { class: `card answer ${outcome}`, data: { outcome } }, parts);
  if (!sources.length) return [card];
  return [card, make("h3", { class: "above" }, "Sources"),
    make("ol", { class: "sources" }, sources.map((source, number) => sourceCard(source, number + 1, response.answer || "")))];
}

/** Return the cited documents of a KB: feedback is stored beside it. */
function citedDocuments(sources, kb) {
  const cited = sources.filter((each) => each.provenance?.kbId === (kb || "default"));
  return [...new Set(cited.map((each) => each.provenance.documentId))];
}

function isEmptyKb(error) {
  return error.code === "E201" || error.details?.code === "E201";
}

function confidence(response) {
  const value = response.confidence ?? 0;
  return badge(`confidence ${Math.round(value * 100)} %${response.partial ? ", partial" : ""}`, value >= 0.6 ? "good" : "warn");
}

function labels(response) {
  const metadata = response.metadata || {};
  return [metadata.librarian ? badge(metadata.librarian) : null, metadata.method && metadata.method !== "none" ? badge(metadata.method) : null].filter(Boolean);
}

/** Return the address of the quoted words in their document; of the whole passage if nothing is quoted. */
function target(source, number, answer) {
  const from = source.provenance;
  if (!from || from.kbId.includes(":")) return null; // a KB on the server of a remote librarian
  const length = (text) => [...text].length;
  const quote = source.quote || "";
  // A quote that was shortened has no known place for each of its characters.
  const found = length(quote) === from.end - from.start ? findQuote(quote, number, answer) : null;
  const words = found ? found.map((offset) => from.start + length(quote.slice(0, offset))).join("-") : "";
  return link({ doc: from.documentId, span: `${from.start}-${from.end}`, quote: words, kb: from.kbId === "default" ? "" : from.kbId, tab: "", entity: "" });
}

function citation(source, number, answer) {
  const href = target(source, number, answer);
  if (!href) return make("sup", {}, `[${number}]`);
  return make("a", { class: "cite", href, "aria-label": `Source ${number}: ${source.name}` }, String(number));
}

function sourceCard(source, number, answer) {
  const href = target(source, number, answer);
  const isWeb = /^https?:\/\//.test(source.url || "");
  return make("li", { class: "card source", id: `source-${number}` },
    make("h4", {}, make("span", { class: "cite", "aria-hidden": "true" }, number),
      href ? make("a", { href }, source.name) : source.name),
    source.quote ? make("p", { class: "passage" }, quoteInContext(source.quote, number, answer)) : null,
    make("div", { class: "foot" },
      source.provenance ? make("span", { class: "path" }, source.provenance.documentId) : null,
      lifecycleTags(source.metadata?.lifecycle),
      isWeb ? make("a", { class: "quiet-link", href: source.url, target: "_blank", rel: "noopener noreferrer" }, "Original") : null));
}

/** Return the quoted words of a passage, marked, with context; the beginning if nothing is quoted. */
function quoteInContext(passage, number, answer) {
  const [from, to] = findQuote(passage, number, answer) || [0, 0];
  const start = from > LEAD ? Math.min(passage.indexOf(" ", from - LEAD) + 1, from) : 0;
  const wanted = Math.max(start + WINDOW, to + LEAD);
  const end = wanted < passage.length ? Math.max(passage.lastIndexOf(" ", wanted), to) : passage.length;
  const text = passage.slice(start, end);
  const span = [from - start, to - start].map((offset) => [...text.slice(0, offset)].length);
  return [start ? "… " : null, ...renderSnippet(text, { spans: to ? [span] : [] }), end < passage.length ? "…" : null];
}

/** Return the start and end of the quotation in the passage; null if it is not quoted word for word. */
function findQuote(passage, number, answer) {
  for (const line of answer.split("\n")) {
    if (!line.startsWith(">") || !line.includes(`[${number}]`)) continue;
    const words = line.replace(/^>\s?/, "").replace(/\[\d{1,3}\]/g, " ").split(/\s+/).filter(Boolean);
    const pattern = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("\\s+");
    const match = words.length ? new RegExp(pattern).exec(passage) : null;
    if (match) return [match.index, match.index + match[0].length];
  }
  return null;
}
