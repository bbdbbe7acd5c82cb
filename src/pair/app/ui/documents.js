// Documents: listed, narrowed, opened, deleted, and put in from files.

import { documentPath, get, ingest, remove } from "./api.js";
import { amount, badge, confirmed, empty, make, problem, say } from "./dom.js";
import { current, link } from "./route.js";
import { isShowing } from "./reader.js";

const PAGE = 25;
const BATCH_DOCUMENTS = 20;
const BATCH_CHARACTERS = 1_000_000;

let filter, owner, list, pager, progress, picker, zone, starts, changed, latest;

/** `onChange`: what to do when documents came or went. */
export function mount(root, onChange) {
  changed = onChange;
  starts = [""];
  filter = make("input", { id: "doc-filter", type: "search", placeholder: "Part of a name or title", autocomplete: "off", spellcheck: false });
  owner = make("select", { id: "doc-owner" }, [["", "all"], ["sync", "synced"], ["ingest", "put in"]].map(([value, text]) => make("option", { value }, text)));
  picker = make("input", { type: "file", id: "files", multiple: true, class: "hidden", tabindex: -1, "aria-label": "Files to put in" });
  zone = make("div", { class: "drop", id: "drop" },
    make("p", {}, make("strong", {}, "Drop files here"), " to put them in, or"),
    make("button", { type: "button", class: "primary", onclick: () => picker.click() }, "Choose files"), picker,
    make("p", { class: "quiet" }, "Text of any kind: .md, .txt, .html, .csv … and .jsonl with a document a line."));
  progress = make("div", { class: "progress", role: "status", "aria-live": "polite" });
  list = make("ul", { class: "documents", "aria-label": "Documents" });
  pager = make("nav", { class: "row end", "aria-label": "Pages of documents" });
  root.append(make("h1", {}, "Documents"), zone, progress,
    make("form", { class: "row", role: "search", onsubmit: (event) => event.preventDefault() },
      make("label", { for: "doc-filter" }, "Filter"), filter, make("label", { for: "doc-owner" }, "From"), owner),
    list, pager);
  filter.addEventListener("input", restart);
  owner.addEventListener("change", restart);
  picker.addEventListener("change", () => {
    const files = [...picker.files];
    picker.value = "";
    put(files);
  });
  prepareDropping(root);
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

async function load() {
  const mine = (latest = {});
  const parameters = { kb_id: current().kb, contains: filter.value.trim(), owner: owner.value, limit: PAGE, after: starts.at(-1) };
  try {
    const found = await get("/rag/docs", parameters);
    if (mine !== latest) return;
    list.replaceChildren(...found.documents.map(row));
    if (!found.documents.length) list.replaceChildren(make("li", {}, empty(found.next ? "None among these" : "No documents", found.next ? "There are more to look through: go on." : "Drop a few files above.")));
    turnPages(found.next);
  } catch (fault) {
    if (mine !== latest) return;
    list.replaceChildren(make("li", {}, fault.code === "E201" ? empty("Nothing was stored yet", "Drop a few files above.") : problem(fault)));
    pager.replaceChildren();
  }
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

/** After asking. */
export async function deleteDocument(id, name, from) {
  const again = from === "sync" ? " It comes back with the next sync, unless its source is taken away." : "";
  const text = `“${name || id}” (${id}) will not be found any more.${again}`;
  if (!(await confirmed({ title: "Delete this document?", text, no: "Keep it", yes: "Delete" }))) return;
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
  const bar = make("progress", { max: 1, value: 0, "aria-label": "Putting in" });
  const told = make("p", {}, `Reading ${amount(files.length, "file")}…`);
  const refused = make("ul", { class: "lines" });
  progress.replaceChildren(bar, told, refused);
  const refuse = (name, reason) => refused.append(make("li", {}, make("strong", {}, name), make("span", {}, reason)));
  const counts = { stored: 0, unchanged: 0, failed: 0 };
  const documents = [];
  for (const file of files) {
    try {
      documents.push(...(await documentsOf(file)));
    } catch (fault) {
      counts.failed += 1;
      refuse(file.name, fault.message);
    }
  }
  for (let done = 0; done < documents.length; ) {
    const batch = nextBatch(documents, done);
    try {
      for await (const line of ingest(batch, { kb_id: current().kb })) {
        if (line.type === "result") {
          counts.stored += line.ingested_docs;
          counts.unchanged += line.unchanged_docs;
        }
      }
    } catch (fault) {
      counts.failed += batch.length;
      refuse(batch.map((each) => each.id).join(", "), fault.message);
    }
    done += batch.length;
    bar.value = done / documents.length;
    told.textContent = `${done} of ${amount(documents.length, "document")}`;
  }
  bar.value = 1;
  told.textContent = `${amount(counts.stored, "document")} stored, ${counts.unchanged} unchanged, ${counts.failed} not stored.`;
  changed();
}

function nextBatch(documents, from) {
  const batch = [];
  let size = 0;
  while (from + batch.length < documents.length && batch.length < BATCH_DOCUMENTS) {
    const next = documents[from + batch.length];
    size += next.text.length;
    if (batch.length && size > BATCH_CHARACTERS) break;
    batch.push(next);
  }
  return batch;
}

async function documentsOf(file) {
  const text = decoded(await file.arrayBuffer());
  if (!text.trim()) throw new Error("there is no text in it");
  if (/\.(jsonl|ndjson)$/i.test(file.name)) return text.split("\n").filter((line) => line.trim()).map(line => JSON.parse(line));
  const heading = /^#{1,2} +(.+)$/m.exec(text.slice(0, 2000))?.[1].trim();
  return [{ id: file.webkitRelativePath || file.name, text, title: heading || file.name }];
}

function decoded(content) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(content);
    if (!text.includes("\0")) return text;
  } catch {
    // told below
  }
  throw new Error("it is not text in UTF-8");
}
