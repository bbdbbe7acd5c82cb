// A question, its answer as it is written, and the passages that it stands on.

import { events } from "./api.js";
import { badge, empty, make, problem } from "./dom.js";
import { amend, current, link } from "./route.js";

let field, button, output, asking, answeredFor;

export function mount(root) {
  field = make("textarea", { id: "question", rows: 2, placeholder: "How do I …?", "aria-label": "Question", enterkeyhint: "send" });
  button = make("button", { type: "submit", class: "primary" }, "Ask");
  output = make("section", { class: "answering", "aria-label": "Answer", "aria-live": "polite", "aria-busy": "false" });
  root.append(
    make("h1", { class: "hidden" }, "Ask"),
    make("form", { class: "asking", onsubmit: submitted }, field,
      make("div", { class: "row between" }, make("p", { class: "quiet" }, "Answers quote and cite what is in the knowledge base. Enter asks."), button)),
    output);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submitted(event);
  });
  output.replaceChildren(empty("Ask in plain words", "The answer shows where each of its sentences comes from."));
}

/** An address that holds a question is asked when the page begins with it; not by coming from another view. */
export function show(route, isNew, isFirst) {
  if (field.value !== route.q && document.activeElement !== field) field.value = route.q;
  if (isNew && !route.doc && !route.entity && !matchMedia("(pointer: coarse)").matches) field.focus({ preventScroll: true });
  if (route.q && isFirst) ask(route.q);
}

function submitted(event) {
  event.preventDefault();
  const query = field.value.trim();
  if (!query) return;
  amend({ q: query });
  ask(query);
}

async function ask(query) {
  asking?.abort();
  const mine = (asking = new AbortController());
  answeredFor = query;
  const written = make("p", { class: "writing" });
  output.setAttribute("aria-busy", "true");
  output.replaceChildren(make("article", { class: "card answer" }, make("p", { class: "quiet thinking" }, "Looking it up…"), written));
  try {
    for await (const { event, data } of events("/ask", { query, kb_id: current().kb }, mine.signal)) {
      if (event === "text") {
        output.querySelector(".thinking")?.remove();
        written.append(data.text);
      }
      if (event === "response") output.replaceChildren(answer(data));
    }
  } catch (fault) {
    if (fault.name === "AbortError") return;
    output.replaceChildren(problem(fault));
  }
  if (asking === mine) output.setAttribute("aria-busy", "false");
}

function answer(response) {
  const sources = response.sources || [];
  const parts = [];
  if (response.error) parts.push(problem(response.error));
  if (response.answer) parts.push(make("div", { class: "prose" }, paragraphs(response.answer, sources)));
  if (response.answer) parts.push(make("p", { class: "row facts" }, certainty(response), ...makers(response)));
  const card = make("article", { class: "card answer" }, parts);
  if (!sources.length) return card;
  return make("div", {}, card,
    make("h2", { class: "above" }, "Sources"),
    make("ol", { class: "sources" }, sources.map((source, number) => listed(source, number + 1))));
}

function certainty(response) {
  const value = response.confidence ?? 0;
  return badge(`confidence ${Math.round(value * 100)} %${response.partial ? ", partial" : ""}`, value >= 0.6 ? "good" : "warn");
}

function makers(response) {
  const told = response.metadata || {};
  return [told.librarian ? badge(told.librarian) : null, told.method ? badge(told.method) : null].filter(Boolean);
}

/** Blank lines part paragraphs; lines that begin with > are quotations; [1] leads to its source. */
function paragraphs(text, sources) {
  return text.split(/\n{2,}/).map((block) => {
    const lines = block.split("\n");
    const isQuotation = lines.every((line) => line.startsWith(">"));
    const plain = isQuotation ? lines.map((line) => line.replace(/^> ?/, "")).join("\n") : block;
    return make(isQuotation ? "blockquote" : "p", {}, cited(plain, sources));
  });
}

function cited(text, sources) {
  return text.split(/(\[\d{1,3}\])/).map((part) => {
    const number = /^\[(\d{1,3})\]$/.exec(part)?.[1];
    const source = number && sources[Number(number) - 1];
    return source ? citation(source, number) : part;
  });
}

function target(source) {
  const from = source.provenance;
  if (!from || from.kbId.includes(":")) return null; // a KB on the server of a remote librarian
  return link({ doc: from.documentId, span: `${from.start}-${from.end}`, kb: from.kbId === "default" ? "" : from.kbId, tab: "", entity: "" });
}

function citation(source, number) {
  const href = target(source);
  if (!href) return make("sup", {}, `[${number}]`);
  return make("a", { class: "cite", href, "aria-label": `Source ${number}: ${source.name}` }, number);
}

function listed(source, number) {
  const href = target(source);
  const isWeb = /^https?:\/\//.test(source.url || "");
  return make("li", { class: "card source", id: `source-${number}` },
    make("h3", {}, make("span", { class: "cite", "aria-hidden": "true" }, number),
      href ? make("a", { href }, source.name) : source.name),
    source.quote ? make("p", { class: "passage clamp" }, source.quote.replace(/\s+/g, " ")) : null,
    make("div", { class: "foot" },
      source.provenance ? make("span", { class: "path" }, source.provenance.documentId) : null,
      isWeb ? make("a", { class: "quiet-link", href: source.url, target: "_blank", rel: "noopener noreferrer" }, "Original") : null));
}
