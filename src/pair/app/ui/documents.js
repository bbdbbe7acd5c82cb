// Documents: list, filter, open, delete and upload them.

import { documentPath, get, ingest, remove, upload } from "./api.js";
import { amount, badge, confirmed, count, empty, loaded, loading, make, problem, say } from "./dom.js";
import { emptyKb } from "./first.js";
import { current, link } from "./route.js";
import { isShowing } from "./reader.js";

const PAGE = 25;
const VALUES = 30;

let filter, owner, key, values, list, pager, progress, zone, starts, changed, latest, kbShown, chosen;

/** `onChange` is called after documents were stored or deleted. */
export function mount(root, onChange) {
  changed = onChange;
  starts = [""];
  filter = make("input", { id: "doc-filter", type: "search", placeholder: "Part of a name or title", autocomplete: "off", spellcheck: false });
  owner = make("select", { id: "doc-owner" }, [["", "all"], ["sync", "synced"], ["ingest", "uploaded"]].map(([value, text]) => make("option", { value }, text)));
  key = make("select", { id: "doc-key" });
  values = make("div", { class: "row values", role: "group", "aria-label": "Values" });
  const picker = filePicker("files", "Files to upload", { multiple: true });
  const folder = filePicker("folder", "Folder to upload", { webkitdirectory: true });
  zone = make("div", { class: "drop", id: "drop" },
    make("p", {}, make("strong", {}, "Drop files here"), " to upload them, or"),
    make("div", { class: "row" },
      make("button", { type: "button", class: "primary", onclick: () => picker.click() }, "Choose files"), picker,
      make("button", { type: "button", class: "plain", onclick: () => folder.click() }, "Choose a folder"), folder),
    make("p", { class: "quiet" }, "Text, Markdown, HTML, PDF, Office, OpenDocument, EPUB, RTF, e-mail, CSV, notebooks, code, and .jsonl with one document per line."));
  progress = make("div", { class: "progress", role: "status", "aria-live": "polite" });
  list = make("ul", { class: "documents", "aria-label": "Documents" });
  pager = make("nav", { class: "row end", "aria-label": "Pages of documents" });
  root.append(make("h1", {}, "Documents"), zone, progress,
    make("form", { class: "row", role: "search", onsubmit: (event) => event.preventDefault() },
      make("label", { for: "doc-filter" }, "Filter"), filter, make("label", { for: "doc-owner" }, "From"), owner,
      make("label", { for: "doc-key" }, "Metadata"), key),
    values, list, pager);
  filter.addEventListener("input", restart);
  owner.addEventListener("change", restart);
  key.addEventListener("change", () => pick(null));
  forget();
  prepareDropping(root);
}

function filePicker(id, name, more) {
  const picker = make("input", { type: "file", id, class: "hidden", tabindex: -1, "aria-label": name, ...more });
  picker.addEventListener("change", () => {
    const files = [...picker.files];
    picker.value = "";
    put(files);
  });
  return picker;
}

/** Forget the metadata keys of another KB. */
function forget() {
  chosen = null;
  key.replaceChildren(make("option", { value: "" }, "any"));
}

function prepareDropping(root) {
  root.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  root.addEventListener("dragleave", () => zone.classList.remove("over"));
  root.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    put([...event.dataTransfer.files]);
  });
}

export function show(_route, isNew) {
  if (isNew) load();
}

export function refresh() {
  if (list) load();
}

function restart() {
  starts = [""];
  load();
}

/** Choose a value of the metadata key, or null for all values. */
function pick(value) {
  chosen = value;
  restart();
}

async function load() {
  const mine = (latest = {});
  const kb = current().kb;
  if (kbShown !== kb) {
    forget();
    starts = [""];
  }
  kbShown = kb;
  const condition = chosen === null ? "" : JSON.stringify({ [key.value]: { eq: chosen } });
  const parameters = { kb_id: kb, contains: filter.value.trim(), owner: owner.value, filter: condition, limit: PAGE, after: starts.at(-1) };
  loading(list);
  try {
    const [found, facets] = await Promise.all([get("/rag/docs", parameters), listValues(kb)]);
    if (mine !== latest) return;
    values.replaceChildren(...facets);
    learn(found.documents);
    loaded(list, found.documents.map(row));
    if (!found.documents.length) loaded(list, make("li", {}, empty(found.next ? "No match on this page" : "No documents", found.next ? "Choose Next to search further." : "Drop a few files above.")));
    turnPages(found.next);
  } catch (fault) {
    if (mine !== latest) return;
    loaded(list, make("li", {}, fault.code === "E201" ? emptyKb() : problem(fault)));
    pager.replaceChildren();
    values.replaceChildren();
  }
}

/** Offer the metadata keys of these documents. */
function learn(documents) {
  const known = new Set([...key.options].map((each) => each.value));
  for (const name of documents.flatMap((each) => Object.keys(each.metadata))) {
    if (known.has(name)) continue;
    known.add(name);
    key.append(make("option", { value: name }, name));
  }
}

/** The values of the chosen metadata key, with the number of documents that have each. */
async function listValues(kb) {
  if (!key.value) return [];
  const found = await get("/rag/facets", { kb_id: kb, key: key.value, owner: owner.value, limit: VALUES });
  if (!found.values.length) return [make("span", { class: "quiet" }, "No document has such a value.")];
  return found.values.map(({ value, count: documents }) => {
    const isChosen = chosen !== null && String(chosen) === String(value);
    return make("button", { type: "button", class: "plain value", "aria-pressed": String(isChosen), onclick: () => pick(isChosen ? null : value) },
      String(value), make("span", { class: "quiet" }, ` ${count.format(documents)}`));
  });
}

function turnPages(next) {
  const turn = (text, isPossible, act) => make("button", { type: "button", class: "plain", disabled: !isPossible, onclick: act }, text);
  pager.replaceChildren(
    turn("Back", starts.length > 1, () => { starts.pop(); load(); }),
    make("span", { class: "quiet" }, `Page ${starts.length}`),
    turn("Next", next !== null, () => { starts.push(next); load(); }));
}

function row(each) {
  const name = each.title || each.id;
  return make("li", { class: "line" },
    make("div", { class: "grow" },
      make("a", { class: "title", href: link({ doc: each.id, span: "", tab: "", entity: "" }) }, name),
      make("div", { class: "foot" }, make("span", { class: "path" }, each.id), badge(each.owner), make("span", { class: "quiet" }, amount(each.chunks, "chunk")))),
    make("button", { type: "button", class: "plain danger-text", "aria-label": `Delete ${name}`, onclick: () => deleteDocument(each.id, name, each.owner) }, "Delete"));
}

/** Delete a document after the user confirmed it. */
export async function deleteDocument(id, name, from) {
  const again = from === "sync" ? " The next sync restores it, unless you remove its source." : "";
  const text = `Searches will no longer find “${name || id}” (${id}).${again}`;
  if (!(await confirmed({ title: "Delete this document?", text, no: "Cancel", yes: "Delete" }))) return;
  try {
    await remove(documentPath(id), { kb_id: current().kb });
    if (isShowing(id)) document.getElementById("reader").close();
    say(`Deleted ${id}`);
    changed();
  } catch (fault) {
    say(`${fault.message}${fault.suggestion ? `. ${fault.suggestion}` : ""}`);
  }
}

async function put(files) {
  const bar = make("progress", { max: files.length, value: 0, "aria-label": "Upload" });
  const status = make("p", {});
  const refused = make("ul", { class: "lines" });
  progress.replaceChildren(bar, status, refused);
  const counts = { stored: 0, unchanged: 0, failed: 0 };
  const parameters = { kb_id: current().kb };
  for (const [done, file] of files.entries()) {
    bar.value = done;
    status.textContent = `${done} of ${amount(files.length, "file")} uploaded. Uploading ${file.name}…`;
    let report = { ingested_docs: 0, unchanged_docs: 0 };
    try {
      for await (report of store(file, parameters));
    } catch (fault) {
      counts.failed += 1;
      refused.append(make("li", {}, make("strong", {}, file.name), make("span", {}, fault.message)));
    }
    counts.stored += report.ingested_docs;
    counts.unchanged += report.unchanged_docs;
  }
  bar.value = files.length;
  status.textContent = `${amount(counts.stored, "document")} stored, ${counts.unchanged} unchanged, ${amount(counts.failed, "file")} not stored.`;
  changed();
}

/** Upload a file. Yield what the server has stored of it so far. */
async function* store(file, parameters) {
  const content = await file.arrayBuffer();
  if (/\.(jsonl|ndjson)$/i.test(file.name)) yield* ingest(content, parameters);
  else yield upload(file.webkitRelativePath || file.name, content, file.type, parameters);
}
