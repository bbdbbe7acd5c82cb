// The page: its views, the KB selector and the sign-in dialog.

import { get, key, whenUnknown } from "./api.js";
import * as ask from "./ask.js";
import * as documents from "./documents.js";
import { make } from "./dom.js";
import * as reader from "./reader.js";
import { CLOSED, current, follow, go, link } from "./route.js";
import * as search from "./search.js";
import * as server from "./server.js";
import * as sources from "./sources.js";
import * as versions from "./versions.js";

const VIEWS = { search, ask, documents, sources, versions, server };
const main = document.getElementById("main");
const chosen = document.getElementById("kb");
const views = document.getElementById("views");
const roots = {};
let shown = "";
let kbShown = null;

function rootOf(name) {
  if (!roots[name]) {
    roots[name] = make("div", { class: "view", id: `view-${name}` });
    main.append(roots[name]);
    VIEWS[name].mount(roots[name], refresh);
  }
  return roots[name];
}

function move(route) {
  const isNew = route.view !== shown;
  const isFirst = !shown;
  if (isNew && shown) {
    VIEWS[shown].hide?.();
    scrollTo(0, 0);
  }
  const root = rootOf(route.view);
  for (const [name, each] of Object.entries(roots)) each.hidden = name !== route.view;
  point(route.view);
  document.title = `${route.q && "search ask".includes(route.view) ? `${route.q} · ` : ""}${root.querySelector("h1").textContent} · pair`;
  chooseKb(route.kb || "default");
  const hasMoved = kbShown !== null && kbShown !== route.kb;
  [shown, kbShown] = [route.view, route.kb];
  VIEWS[route.view].show(route, isNew, isFirst);
  if (hasMoved) refresh();
  reader.show(route);
}

/** Update the links to the views. The query is kept between search and ask. */
function point(here) {
  for (const anchor of views.querySelectorAll("a")) {
    const name = anchor.dataset.view;
    const kept = name === "search" || name === "ask" ? {} : { q: "", mode: "", filter: "" };
    const picked = name === "versions" ? {} : { a: "", b: "" };
    const version = name === here ? {} : { at: "" };
    anchor.setAttribute("href", link({ view: name, ...CLOSED, ...kept, ...picked, ...version }));
    if (name === here) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
}

/** Reload the views that were opened. */
function refresh() {
  for (const name of Object.keys(roots)) if (!roots[name].hidden || name === "search") VIEWS[name].refresh?.();
}

function chooseKb(name) {
  if (![...chosen.options].some((option) => option.value === name)) chosen.append(make("option", {}, name));
  chosen.value = name;
}

async function listKbs() {
  const found = await get("/rag/kbs").catch(() => ({ kbs: [] }));
  const names = new Set([...found.kbs.map((each) => each.kb_id), current().kb || "default"]);
  chosen.replaceChildren(...[...names].sort().map((name) => make("option", {}, name)));
  chooseKb(current().kb || "default");
}

views.addEventListener("click", () => point(shown)); // the user may have typed since
chosen.addEventListener("change", () => go(link({ ...CLOSED, at: "", a: "", b: "", kb: chosen.value === "default" ? "" : chosen.value })));

// ── sign-in ──

const keyDialog = document.getElementById("key");
const keyInput = document.getElementById("key-input");
const keyButton = document.getElementById("key-button");

function askForKey(reason) {
  keyButton.hidden = false;
  if (reason) document.getElementById("key-reason").textContent = `${reason}. The key is kept until you close this tab.`;
  if (!keyDialog.open) keyDialog.showModal();
}

whenUnknown((fault) => askForKey(key.get() ? fault.message : "This server needs an API key or a token"));
keyButton.hidden = !key.get();
keyButton.addEventListener("click", () => askForKey(""));
document.getElementById("key-forget").addEventListener("click", () => {
  key.forget();
  keyDialog.close();
  location.reload();
});
document.getElementById("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(keyInput.value.trim());
  keyInput.value = "";
  keyDialog.close();
  listKbs();
  refresh();
});

// ── keys on the keyboard ──

addEventListener("keydown", (event) => {
  const isWriting = event.target.closest?.("input, textarea, select");
  if (event.key !== "/" || isWriting || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  if (current().view !== "search") go(link({ view: "search", ...CLOSED }));
  search.focusSearch();
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

reader.prepare(documents.deleteDocument);
follow(move);
listKbs();
