// A document in a sheet: its text with the passage marked, or the graph around it.

import { documentPath, get } from "./api.js";
import { amount, badge, make, marked, problem } from "./dom.js";
import { drawn } from "./graph.js";
import { renderMarkdown } from "./markdown.js";
import { close, current, link } from "./route.js";
import { said } from "./search.js";

const RENDERED_CHARACTERS = 400_000;
const LEAST_HEADINGS = 4;
const sheet = document.getElementById("reader");
const titles = new Map();
let loading = null;
let deleting = () => {};

export function prepare(deleteDocument) {
  deleting = deleteDocument;
  sheet.addEventListener("close", () => close());
  sheet.addEventListener("click", (event) => {
    if (event.target === sheet) sheet.close();
  });
}

export async function show(route) {
  loading?.abort();
  if (!route.doc && !route.entity) {
    if (sheet.open) sheet.close();
    return;
  }
  loading = new AbortController();
  const { signal } = loading;
  const wasOpen = sheet.open;
  const body = make("div", { class: "sheet-body" }, make("p", { class: "quiet" }, "Loading…"));
  const title = make("h2", { id: "reader-title", tabindex: -1 }, route.entity || route.doc);
  sheet.replaceChildren(head(route, title), body);
  if (!sheet.open) sheet.showModal();
  if (!wasOpen) title.focus();
  try {
    if (route.entity || route.tab === "graph") await showGraph(route, title, body, signal);
    else await showText(route, title, body, signal);
  } catch (fault) {
    if (fault.name !== "AbortError") body.replaceChildren(problem(fault));
  }
}

function head(route, title) {
  const tab = (name, text, changes) => {
    const isHere = (route.entity || route.tab === "graph") === (name === "graph");
    return make("a", { href: link(changes), "aria-current": isHere ? "page" : null }, text);
  };
  return make("div", { class: "sheet-head" },
    make("div", { class: "row between" }, title,
      make("button", { type: "button", class: "plain icon", "aria-label": "Close", onclick: () => sheet.close() }, "✕")),
    route.doc && !route.entity
      ? make("nav", { class: "tabs", "aria-label": "Document" }, tab("text", "Text", { tab: "" }), tab("graph", "Graph", { tab: "graph" }))
      : null);
}

async function showText(route, title, body, signal) {
  const found = await get(documentPath(route.doc), { kb_id: route.kb, at: route.at }, signal);
  title.textContent = found.title || found.id;
  titles.set(found.id, title.textContent);
  const span = /^(\d+)-(\d+)$/.exec(route.quote || route.span);
  const options = { spans: span ? [[Number(span[1]), Number(span[2])]] : [], attributes: { class: route.quote ? "here quoted" : "here" } };
  // Very long texts are shown as they are stored: rendering them would take seconds.
  const isLong = found.text.length > RENDERED_CHARACTERS;
  const text = make("div", { class: isLong ? "text raw" : "text prose", tabindex: 0, role: "region", "aria-label": "Text" },
    isLong ? marked(found.text, options.spans, options.attributes) : renderMarkdown(found.text, options));
  body.replaceChildren(facts(found, route.at), outline(text), text);
  const passage = text.querySelector(".here");
  passage?.setAttribute("id", "passage");
  passage?.scrollIntoView({ block: passage.offsetHeight > body.clientHeight ? "start" : "center" });
}

/** Return the headings of a long text, each a button that scrolls to it; nothing for a short text. */
function outline(text) {
  const headings = [...text.querySelectorAll(":scope > :is(h3, h4, h5, h6)")];
  if (headings.length < LEAST_HEADINGS) return "";
  const least = Math.min(...headings.map((each) => Number(each.tagName[1])));
  const item = (heading) => make("li", { class: `level-${Math.min(2, Number(heading.tagName[1]) - least)}` },
    make("button", { type: "button", class: "plain", onclick: () => heading.scrollIntoView({ block: "start" }) }, heading.textContent));
  return make("details", { class: "outline" }, make("summary", {}, "Contents"), make("ul", {}, headings.map(item)));
}

/** A document of an earlier version cannot be deleted. */
function facts(found, at) {
  const isWeb = /^https?:\/\//.test(found.url);
  return make("div", { class: "facts" },
    make("span", { class: "path" }, found.id),
    at ? badge(`version ${at}`, "warn") : null,
    badge(found.owner),
    make("span", { class: "quiet" }, amount(found.chunks, "chunk")),
    isWeb ? make("a", { href: found.url, target: "_blank", rel: "noopener noreferrer" }, "Open the original") : null,
    Object.entries(found.metadata).map(([name, value]) => make("span", { class: "tag" }, `${name}: ${said(value)}`)),
    at ? null : make("button", { type: "button", class: "plain danger-text", onclick: () => deleting(found.id, found.title, found.owner) }, "Delete"));
}

async function showGraph(route, title, body, signal) {
  const parameters = { kb_id: route.kb, at: route.at, limit: 24, ...(route.entity ? { entity: route.entity } : { document: route.doc }) };
  const around = await get("/rag/graph", parameters, signal);
  const centre = route.entity || route.doc;
  title.textContent = route.entity ? `“${centre}”` : titles.get(centre) || centre;
  if (!around.entities.length) {
    body.replaceChildren(make("p", {}, "This document mentions no name that another document mentions."));
    return;
  }
  body.replaceChildren(
    drawn(around, route.entity ? null : { id: route.doc, name: title.textContent }),
    make("div", { class: "two" },
      listed("Names", around.entities.map((each) => [each.name, link({ doc: "", span: "", tab: "", entity: each.name }), amount(each.chunks, "chunk")])),
      listed("Documents", around.documents.map((each) => [each.title || each.id, link({ doc: each.id, span: "", tab: "", entity: "" }), each.entities.slice(0, 4).join(", ")]))));
}

function listed(name, rows) {
  return make("section", {},
    make("h3", {}, name),
    rows.length
      ? make("ul", { class: "lines" }, rows.map(([text, href, more]) => make("li", {}, make("a", { href }, text), make("span", { class: "quiet" }, more))))
      : make("p", { class: "quiet" }, "None."));
}

export function isShowing(id) {
  return sheet.open && current().doc === id;
}
