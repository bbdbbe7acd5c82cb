// A question, its answer while it is written, and the passages that it cites.

import { events } from "./api.js";
import { badge, empty, emptyKb, lifecycleTags, make, problem } from "./dom.js";
import { renderMarkdown, renderSnippet } from "./markdown.js";
import { amend, current, link } from "./route.js";

const WINDOW = 360;
const LEAD = 80;
let field, button, output, asking;

export function mount(root) {
  field = make("textarea", { id: "question", rows: 2, placeholder: "How do I …?", "aria-label": "Question", enterkeyhint: "send" });
  button = make("button", { type: "submit", class: "primary" }, "Ask");
  output = make("section", { class: "answering", "aria-label": "Answer", "aria-live": "polite", "aria-busy": "false" });
  root.append(
    make("h1", { class: "hidden" }, "Ask"),
    make("form", { class: "asking", onsubmit: submit }, field,
      make("div", { class: "row between" }, make("p", { class: "quiet" }, "Answers quote and cite this knowledge base. Press Enter to ask."), button)),
    output);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  output.replaceChildren(empty("Ask a question", "The answer shows the source of each of its statements."));
}

/** A question in the address is asked when the page loads, not when the user comes from another view. */
export function show(route, isNew, isFirst) {
  if (field.value !== route.q && document.activeElement !== field) field.value = route.q;
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

async function ask(query) {
  asking?.abort();
  const mine = (asking = new AbortController());
  const written = make("p", { class: "writing" });
  output.setAttribute("aria-busy", "true");
  output.replaceChildren(make("article", { class: "card answer" }, make("p", { class: "quiet thinking" }, "Searching…"), written));
  try {
    for await (const { event, data } of events("/ask", { query, kb_id: current().kb }, mine.signal)) {
      if (event === "text") {
        output.querySelector(".thinking")?.remove();
        written.append(data.text);
      }
      if (event === "response") output.replaceChildren(showResponse(data));
    }
  } catch (fault) {
    if (fault.name === "AbortError") return;
    output.replaceChildren(fault.code === "E201" ? emptyKb() : problem(fault));
  }
  if (asking === mine) output.setAttribute("aria-busy", "false");
}

/** The three outcomes look different: an answer, passages without a claim, or nothing. */
function showResponse(response) {
  const sources = response.sources || [];
  const outcome = response.metadata?.outcome || "answer";
  const parts = [];
  if (response.error) parts.push(isEmptyKb(response.error) ? emptyKb() : problem(response.error));
  if (response.answer) {
    const cite = (number) => (sources[number - 1] ? citation(sources[number - 1], number) : null);
    parts.push(make("div", { class: "prose" }, renderMarkdown(response.answer, { cite })));
    parts.push(make("p", { class: "row facts" }, outcome === "answer" ? confidence(response) : null, ...labels(response)));
  }
  const card = make("article", { class: `card answer ${outcome}`, data: { outcome } }, parts);
  if (!sources.length) return card;
  return make("div", {}, card,
    make("h2", { class: "above" }, "Sources"),
    make("ol", { class: "sources" }, sources.map((source, number) => sourceCard(source, number + 1, response.answer || ""))));
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

function target(source) {
  const from = source.provenance;
  if (!from || from.kbId.includes(":")) return null; // a KB on the server of a remote librarian
  return link({ doc: from.documentId, span: `${from.start}-${from.end}`, kb: from.kbId === "default" ? "" : from.kbId, tab: "", entity: "" });
}

function citation(source, number) {
  const href = target(source);
  if (!href) return make("sup", {}, `[${number}]`);
  return make("a", { class: "cite", href, "aria-label": `Source ${number}: ${source.name}` }, String(number));
}

function sourceCard(source, number, answer) {
  const href = target(source);
  const isWeb = /^https?:\/\//.test(source.url || "");
  return make("li", { class: "card source", id: `source-${number}` },
    make("h3", {}, make("span", { class: "cite", "aria-hidden": "true" }, number),
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
