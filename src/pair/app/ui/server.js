// The server: its KBs with shards and sizes, requests since the start, live metrics, and background jobs.

import { get } from "./api.js";
import { amount, badge, bytes, count, draw, interval, loaded, loading, make, problem, when } from "./dom.js";

const EVERY_MS = 2000;
const DEBTS = {
  size_tier: "many small shards", tombstone_pressure: "many deleted documents", keywords_missing: "no keyword index",
};
const KEPT = 60;
const [WIDTH, HEIGHT] = [240, 56];

let kbs, jobs, charts, past, started, trouble, before, timer, isShown;
const series = new Map();

export function mount(root) {
  kbs = make("div", { class: "grid", id: "kbs" });
  jobs = make("div", { class: "grid", id: "jobs" });
  charts = make("div", { class: "grid", id: "charts" });
  past = make("div", { class: "grid", id: "history" });
  started = make("h2", {}, "Since the start");
  trouble = make("div", {});
  root.append(make("h1", {}, "Server"), trouble,
    make("h2", {}, "Knowledge bases"), kbs,
    started, past,
    make("h2", {}, "Live"), charts,
    make("h2", {}, "Background jobs"), jobs);
  document.addEventListener("visibilitychange", () => {
    if (isShown) poll();
  });
}

export function show() {
  isShown = true;
  poll();
  listKbs();
}

export function hide() {
  isShown = false;
  clearTimeout(timer);
}

export function refresh() {
  if (kbs) show();
}

async function listKbs() {
  loading(kbs);
  try {
    const found = await get("/rag/kbs");
    loaded(kbs, found.kbs.map(kb));
    if (!found.kbs.length) loaded(kbs, make("p", { class: "quiet" }, "No knowledge base has documents yet."));
  } catch (fault) {
    loaded(kbs, problem(fault));
  }
}

function pairs(rows) {
  return make("dl", {}, rows.filter(([, value]) => value !== null).map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function kb(each) {
  return make("article", { class: "card" },
    make("h3", {}, each.kb_id),
    pairs([
      ["documents", count.format(each.documents)],
      ["chunks", count.format(each.chunks)],
      ["shards", count.format(each.shards)],
      ["size", bytes(each.size_bytes)],
      ["in cache", bytes(each.cache.size_bytes || 0)],
      ["deleted, not yet compacted", each.deleted_documents ? count.format(each.deleted_documents) : null],
      ["compaction due", each.compaction_debt ? DEBTS[each.compaction_debt] || each.compaction_debt : null],
      ["version", count.format(each.manifest_version)],
      ["embedder", each.embedder],
    ]));
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return; // resumes when the page becomes visible
  try {
    const figures = await get("/metrics/app");
    if (trouble.hasChildNodes()) listKbs(); // the server is back
    trouble.replaceChildren();
    note(figures);
    started.replaceChildren("Since the start, ", when(figures.start_time));
    started.title = `Each point is ${amount(figures.history.interval_seconds, "second")}`;
    past.replaceChildren(...history(figures.history));
    jobs.replaceChildren(...Object.entries(figures.background).map(job));
    charts.replaceChildren(...[...series].map(([name, values]) => chart(name, values)));
  } catch (fault) {
    trouble.replaceChildren(problem(fault));
    if (fault.status === 401 || fault.status === 403) return;
  }
  clearTimeout(timer);
  if (isShown) timer = setTimeout(poll, EVERY_MS);
}

function add(name, value, unit) {
  const values = series.get(name) || { unit, points: [] };
  values.points.push(value);
  values.points.splice(0, values.points.length - KEPT);
  series.set(name, values);
}

function sum(stats, key) {
  return Object.values(stats).reduce((total, each) => total + (each[key] || 0), 0);
}

function note(figures) {
  const now = {
    at: figures.uptime_seconds,
    requests: sum(figures.route_stats, "count"),
    errors: sum(figures.route_stats, "error_count"),
    queries: sum(figures.query_stats, "count"),
    query_ms: sum(figures.query_stats, "latency_sum_ms"),
    cpu: figures.runtime.cpu_seconds,
  };
  const last = before && before.at < now.at ? before : { ...now, at: now.at - EVERY_MS / 1000 };
  const seconds = now.at - last.at;
  add("Requests", (now.requests - last.requests) / seconds, "/s");
  add("Errors", (now.errors - last.errors) / seconds, "/s");
  add("Query time", now.queries > last.queries ? (now.query_ms - last.query_ms) / (now.queries - last.queries) : 0, " ms");
  add("Processor", (100 * (now.cpu - last.cpu)) / seconds, " %");
  add("Peak memory", figures.runtime.peak_memory_bytes / 1e6, " MB");
  add("Threads", figures.runtime.threads, "");
  before = now;
}

/** Requests, errors and durations since the start. */
function history({ interval_seconds: seconds, requests, errors, latency_ms: latency }) {
  const total = (values) => values.reduce((one, other) => one + other, 0);
  const rate = (values) => values.map((each) => each / seconds);
  const mean = requests.map((each, place) => (each ? latency[place] / each : 0));
  const all = total(requests);
  return [
    chart("Requests", { points: rate(requests) }, count.format(all)),
    chart("Errors", { points: rate(errors) }, count.format(total(errors))),
    chart("Mean duration", { points: mean }, `${(all ? total(latency) / all : 0).toFixed(1)} ms`),
  ];
}

function chart(name, { unit, points }, figure) {
  const highest = Math.max(...points, 1e-9);
  const step = WIDTH / Math.max(points.length - 1, 14);
  const first = WIDTH - step * (points.length - 1);
  const path = points.map((value, number) => `${(first + number * step).toFixed(1)},${(HEIGHT - 3 - (value / highest) * (HEIGHT - 8)).toFixed(1)}`);
  const last = points.at(-1);
  const said = figure ?? `${last >= 100 || Number.isInteger(last) ? Math.round(last) : last.toFixed(1)}${unit}`;
  return make("article", { class: "card chart" },
    make("div", { class: "row between" }, make("h3", {}, name), make("strong", {}, said)),
    draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${name}: ${said}`, preserveAspectRatio: "none" },
      draw("polygon", { class: "area", points: `${first.toFixed(1)},${HEIGHT} ${path.join(" ")} ${WIDTH},${HEIGHT}` }),
      draw("polyline", { class: "curve", points: path.join(" ") })));
}

function job([name, each]) {
  const state = each.running ? ["running", "good"] : each.last_error ? ["failed", "bad"] : each.runs ? ["idle", "good"] : ["not run yet", ""];
  return make("article", { class: "card" },
    make("div", { class: "row between" }, make("h3", {}, name), badge(...state)),
    pairs([
      ["every", interval(each.interval_seconds)],
      ["runs", count.format(each.runs)],
      ["failures", count.format(each.failures)],
      ["skipped", each.skipped ? count.format(each.skipped) : null],
      ["last", each.last_started_at ? when(each.last_started_at) : null],
      ["took", each.last_seconds === undefined ? null : `${each.last_seconds} s`],
    ]),
    each.last_error ? make("p", { class: "problem" }, each.last_error) : null);
}
