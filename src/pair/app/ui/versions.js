// Versions: list them, compare two of them, and roll back.

import { get, post } from "./api.js";
import { amount, badge, confirmed, loaded, loading, make, problem, say, when } from "./dom.js";
import { emptyKb } from "./first.js";
import { current, go, link } from "./route.js";

const CAUSES = {
  upsert: "documents stored", delete: "documents deleted", compact: "shards compacted", collect: "garbage collected",
  reembed: "re-embedded", release: "sync resumed", install: "package installed", import: "imported", repair: "repaired",
};
const CHANGES = { added: "good", removed: "bad", changed: "warn" };
const PAGE = 50;

let form, from, to, withTexts, heading, lines, list, changed, latest, mayRollBack, picked;

/** `onChange` is called after a rollback. */
export function mount(root, onChange) {
  changed = onChange;
  from = make("select", { id: "version-from", onchange: pick });
  to = make("select", { id: "version-to", onchange: pick });
  withTexts = make("input", { id: "version-texts", type: "checkbox", onchange: compare });
  heading = make("h2", { "aria-live": "polite" });
  lines = make("div");
  const result = make("section", { id: "difference", "aria-label": "What changed" }, heading, lines);
  list = make("ul", { class: "documents", "aria-label": "Versions" });
  form = make("form", { class: "row comparing", "aria-label": "Compare two versions", onsubmit: (event) => event.preventDefault() },
    make("label", { for: "version-from" }, "What changed from"), from, make("label", { for: "version-to" }, "to"), to,
    make("span", { class: "row" }, withTexts, make("label", { for: "version-texts" }, "with texts")));
  root.append(make("h1", {}, "Versions"), form, result, list);
}

export function show(route, isNew) {
  if (isNew) load();
  else if (picked !== pickedIn(route)) choose(route);
}

export function refresh() {
  if (list) load();
}

function pickedIn(route) {
  return `${route.a} ${route.b}`;
}

async function load() {
  const mine = (latest = {});
  loading(list);
  try {
    const found = await get("/rag/versions", { kb_id: current().kb });
    if (mine !== latest) return;
    mayRollBack = found.may_roll_back;
    form.hidden = false;
    loaded(list, found.versions.map(row));
    const options = () => found.versions.map((each) => make("option", { value: each.version }, nameOf(each)));
    from.replaceChildren(make("option", { value: "" }, "–"), ...options());
    to.replaceChildren(make("option", { value: "" }, "the current version"), ...options());
    choose(current());
  } catch (fault) {
    if (mine !== latest) return;
    head("");
    form.hidden = true;
    loaded(list, make("li", {}, fault.code === "E201" ? emptyKb() : problem(fault)));
  }
}

function nameOf(each) {
  return `${each.version}${each.label ? ` · ${each.label}` : ""}${each.current ? " · current" : ""}`;
}

function causeOf(each) {
  return each.made_by === "rollback" ? `rolled back to version ${each.restored}` : CAUSES[each.made_by] || "";
}

function row(each) {
  const act = [];
  if (!each.current) {
    act.push(make("a", { class: "quiet-link", href: link({ view: "search", at: String(each.version), a: "", b: "" }), "aria-label": `Search in version ${each.version}` }, "Search this version"));
    act.push(make("a", { class: "quiet-link", href: link({ a: String(each.version), b: "" }), "aria-label": `What changed since version ${each.version}` }, "Changes since"));
    if (mayRollBack) act.push(make("button", { type: "button", class: "plain", "aria-label": `Roll back to version ${each.version}`, onclick: () => rollBack(each) }, "Roll back"));
  }
  return make("li", { class: "line" },
    make("div", { class: "grow" },
      make("div", { class: "row" }, make("span", { class: "title" }, `Version ${each.version}`), each.current ? badge("current", "good") : null, each.label ? badge(each.label) : null),
      make("div", { class: "foot quiet" }, when(each.created_at), make("span", {}, causeOf(each)), make("span", {}, amount(each.documents, "document")))),
    make("div", { class: "row end" }, act));
}

// ── comparing ──

function pick() {
  go(link({ a: from.value, b: to.value }));
}

/** Select the versions that the address names. */
function choose(route) {
  picked = pickedIn(route);
  for (const [field, value] of [[from, route.a], [to, route.b]]) {
    if (value && ![...field.options].some((option) => option.value === value)) field.append(make("option", { value }, value));
    field.value = value;
  }
  compare();
}

async function compare() {
  const mine = (compare.latest = {});
  if (!from.value) {
    head("");
    return;
  }
  const asked = { kb_id: current().kb, a: from.value, b: to.value, text: withTexts.checked ? "true" : "", limit: PAGE };
  try {
    const found = await get("/rag/diff", asked);
    if (mine === compare.latest) tell(found, asked);
  } catch (fault) {
    if (mine === compare.latest) head("", problem(fault));
  }
}

function tell(found, asked) {
  const counted = Object.keys(CHANGES).map((each) => `${found[each]} ${each}`).join(", ");
  const items = make("ul", { class: "differing" }, found.documents.map(item));
  const more = make("div", { class: "row end" });
  const isSame = !found.added && !found.removed && !found.changed;
  head(`From version ${found.a} to ${found.b}: ${isSame ? "the same documents" : counted}`, items, more);
  goOn(found, { ...asked, a: found.a, b: found.b }, items, more);
}

/** Show a heading, which screen readers announce, and what is below it. */
function head(text, ...below) {
  heading.hidden = !text;
  heading.textContent = text;
  lines.replaceChildren(...below);
}

function goOn(found, asked, items, more) {
  more.replaceChildren();
  if (found.next === null) return;
  more.append(make("button", { type: "button", class: "plain", onclick: async () => {
    try {
      const next = await get("/rag/diff", { ...asked, after: found.next });
      items.append(...next.documents.map(item));
      goOn(next, asked, items, more);
    } catch (fault) {
      more.prepend(problem(fault));
    }
  } }, "Show more"));
}

function item(each) {
  return make("li", { class: "card" },
    make("div", { class: "head" }, badge(each.change, CHANGES[each.change]), make("h3", {}, each.id)),
    each.entry.length ? differing(each.entry) : make("p", { class: "quiet" }, "Its index entry did not change."),
    each.text?.length ? differing(each.text) : null,
    each.left_out_lines ? make("p", { class: "quiet" }, `${amount(each.left_out_lines, "more line")} not shown.`) : null);
}

function differing(parts) {
  const kinds = { "+": "plus", "-": "minus", "@": "place" };
  return make("pre", { class: "lines-diff" }, parts.map((line) => make("span", { class: kinds[line[0]] }, line)));
}

// ── rollback ──

async function rollBack(each) {
  const asked = {
    title: `Roll back to version ${each.version}?`,
    text: `The KB returns to ${amount(each.documents, "document")} as of ${new Date(each.created_at).toLocaleString()}. The rollback is a new version, so nothing is lost. Background sync pauses until you run a sync.`,
    no: "Cancel",
    yes: "Roll back",
  };
  if (!(await confirmed(asked))) return;
  try {
    const done = await post("/rag/rollback", { kb_id: current().kb, version: each.version });
    say(`Rolled back to version ${done.restored}. The current version is ${done.manifest_version}.`);
    changed();
  } catch (fault) {
    say(`${fault.message}${fault.suggestion ? `. ${fault.suggestion}` : ""}`);
  }
}
