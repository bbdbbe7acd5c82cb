// The page: one field, the answer and the passages for what is typed in it.

import { NOTHING_BELOW, quote } from "./answer.js";
import { parseKey } from "./signature.js";
import { Site } from "./site.js";
import { make, showAnswer, showPassage } from "./view.js";

const MOST_KEPT_BYTES = 16_000_000;
const LIMIT = 5;
const base = new URL("./", location.href.split("#")[0]).href;
const KEY_NAME = `pair-key:${new URL(base).pathname}`;
const byId = (id) => document.getElementById(id);
const [field, hits, answer, state] = ["q", "hits", "answer", "state"].map(byId);
const noted = new Set();

function note(kind, text) {
  if (noted.has(text)) return;
  noted.add(text);
  byId("notes").append(make("p", { "data-kind": kind }, text));
}

function fail(fault) {
  byId("problem").textContent = fault.message;
  byId("problem").dataset.kind = fault.kind ?? "";
  byId("problem").hidden = false;
  answer.hidden = true;
  hits.replaceChildren();
  hits.dataset.for = field.value.trim();
  state.textContent = "";
}

/** Returns the key that must have signed the site: from the link, or that of an earlier visit. */
function findKey() {
  // A plus sign of a key is a blank to URLSearchParams.
  const given = new URLSearchParams(location.hash.slice(1)).get("key")?.replaceAll(" ", "+");
  try {
    return given || localStorage.getItem(KEY_NAME) || "";
  } catch {
    return given ?? "";
  }
}

function rememberKey(key) {
  try {
    localStorage.setItem(KEY_NAME, key);
  } catch {
    // This browser keeps nothing: every visit is the first.
  }
}

function describe(result) {
  const { hits, isPartial } = result;
  const changes = Array.from(result.corrected, ([word, near]) => `${word} → ${near}`);
  const parts = [hits.length ? `${hits.length} ${hits.length === 1 ? "passage" : "passages"}` : "No results"];
  // What could not be read may be the answer.
  if (hits.length && hits[0].score < NOTHING_BELOW && !isPartial) parts.unshift("Probably not in this knowledge base");
  if (!hits.length && result.nearMisses && !isPartial) parts[0] = "Not in this knowledge base";
  if (changes.length) parts.push(`searched instead: ${changes.join("; ")}`);
  if (isPartial) parts.push("incomplete");
  if (result.isOffline) parts.push("offline: some words have no vector");
  return parts.join(" · ");
}

function show(result, query) {
  const terms = new Set(result.terms);
  const found = quote(result);
  byId("problem").hidden = true;
  answer.hidden = !found;
  answer.replaceChildren(...(found ? showAnswer(found) : []));
  hits.replaceChildren(...result.hits.map((passage) => showPassage(passage, terms)));
  state.textContent = query ? describe(result) : "";
  hits.dataset.for = query;
}

let [site, isBusy] = [null, false];
const NOTHING = { hits: [], nearMisses: 0, corrected: new Map(), weights: new Map(), terms: [] };

/** Searches for what is in the field now. While a search runs, only the last text waits. */
async function search() {
  if (isBusy || !site) return;
  isBusy = true;
  try {
    for (let query = null; query !== field.value.trim(); ) {
      query = field.value.trim();
      const result = query ? await site.search(query, { limit: LIMIT }) : NOTHING;
      if (query === field.value.trim() || !query) show(result, query);
    }
  } catch (fault) {
    fail(fault);
  } finally {
    isBusy = false;
  }
}

const toSize = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

async function keepOffline() {
  const button = byId("offline");
  button.hidden = true;
  await site.source.keepOffline();
  document.body.dataset.offline = "ready";
}

/** Stores a small site for use offline at once; a large one when asked. */
async function prepareOffline() {
  if (!navigator.serviceWorker) return;
  await navigator.serviceWorker.register("sw.js");
  await navigator.serviceWorker.ready;
  const size = site.source.listFiles().reduce((sum, [, bytes]) => sum + bytes, 0);
  if (size <= MOST_KEPT_BYTES && !navigator.connection?.saveData) return keepOffline();
  byId("offline").textContent = `Keep for offline use (${toSize(size)})`;
  byId("offline").hidden = false;
  byId("offline").addEventListener("click", () => keepOffline().catch(fail));
  return undefined;
}

async function start() {
  site = await Site.open(base, { key: findKey(), onNote: note });
  const { about } = site;
  if (about.key) rememberKey(about.key);
  byId("signed").textContent = about.key ? `Signed by key ${parseKey(about.key).id}` : "Not signed";
  byId("signed").className = about.key ? "good" : "";
  if (!about.embedder) note("words", "This site searches by words only: its embedder does not run in a browser.");
  document.body.dataset.version = about.version;
  await site.load();
  document.body.dataset.state = "ready";
  await search();
  prepareOffline().catch((fault) => note("offline", `Not available offline: ${fault.message}`));
}

byId("plain").remove();
field.addEventListener("input", search);
const asked = new URLSearchParams(location.hash.slice(1)).get("q");
if (asked) field.value = asked;
start().catch(fail);

/** For tests and benchmarks. */
export const openSite = () => site;
