// Synced sources: the state of each, and the reason.

import { get } from "./api.js";
import { amount, badge, empty, interval, loaded, loading, make, problem, when } from "./dom.js";
import { addressForm } from "./first.js";

const KINDS = { current: "good", pending: "warn", failing: "bad", skipped: "" };
const PAGE = 50;

let state, summary, list, more;

export function mount(root) {
  state = make("select", { id: "state", onchange: load }, [["", "all"], ...Object.keys(KINDS).map((each) => [each, each])].map(([value, text]) => make("option", { value }, text)));
  summary = make("div", { class: "tiles", role: "status", "aria-live": "polite" });
  list = make("ul", { class: "documents", "aria-label": "Sources" });
  more = make("div", { class: "row end" });
  root.append(make("h1", {}, "Sources"), summary,
    make("div", { class: "row" }, make("label", { for: "state" }, "State"), state,
      make("button", { type: "button", class: "plain", onclick: load }, "Refresh")),
    addressForm(load), list, more);
}

export function show(_route, isNew) {
  if (isNew) load();
}

export function refresh() {
  if (list) load();
}

async function load() {
  loading(list);
  try {
    const found = await get("/sync", { state: state.value, limit: PAGE });
    summary.replaceChildren(...tiles(found));
    const rows = [...(await troubled(found)), ...found.sources.filter((each) => state.value || !isTrouble(each.state))];
    loaded(list, rows.map(row));
    if (!found.sources.length) loaded(list, make("li", {}, empty("No sources", "Add a page above, or a folder or site in a terminal: pair add ./docs")));
    goOn(found.next);
  } catch (fault) {
    loaded(list, make("li", {}, problem(fault)));
    more.replaceChildren();
  }
}

function isTrouble(name) {
  return name === "failing" || name === "pending";
}

/** Sources that fail or are pending come first, whatever their name. */
async function troubled({ states }) {
  if (state.value) return [];
  const names = Object.keys(states).filter(isTrouble).sort();
  const found = await Promise.all(names.map((name) => get("/sync", { state: name, limit: PAGE })));
  return found.flatMap((each) => each.sources);
}

function goOn(next) {
  more.replaceChildren();
  if (next === null) return;
  more.append(make("button", { type: "button", class: "plain", onclick: async () => {
    try {
      const found = await get("/sync", { state: state.value, limit: PAGE, after: next });
      list.append(...found.sources.filter((each) => state.value || !isTrouble(each.state)).map(row));
      goOn(found.next);
    } catch (fault) {
      more.prepend(problem(fault));
    }
  } }, "Show more"));
}

function tile(name, ...content) {
  return make("div", { class: "tile" }, make("span", { class: "quiet" }, name), make("strong", {}, content));
}

function tiles({ enabled, run, states }) {
  const doing = !enabled ? "off" : run.running ? "running now" : run.last_error ? "failed" : "idle";
  const found = [tile("Sync", badge(doing, run.last_error ? "bad" : enabled ? "good" : ""))];
  for (const [name, kind] of Object.entries(KINDS)) if (states[name]) found.push(tile(name[0].toUpperCase() + name.slice(1).replaceAll("_", " "), badge(String(states[name]), kind)));
  if (run.last_started_at) found.push(tile("Last run", when(run.last_started_at)));
  if (enabled) found.push(tile("Interval", interval(run.interval_seconds)));
  if (run.last_error) found.push(make("p", { class: "problem" }, run.last_error));
  return found;
}

function row(each) {
  return make("li", { class: "line" },
    make("div", { class: "grow" },
      make("span", { class: "title" }, each.source_id),
      each.reason ? make("p", { class: "reason" }, each.reason) : null,
      make("div", { class: "foot quiet" },
        make("span", {}, each.kind),
        each.seen_at ? make("span", {}, "seen ", when(each.seen_at)) : null,
        each.next_check_at ? make("span", {}, "next check ", when(each.next_check_at)) : null,
        each.fetch_status ? make("span", {}, each.fetch_status.replaceAll("_", " ")) : null)),
    badge(each.state, KINDS[each.state]));
}
