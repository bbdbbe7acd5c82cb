// What an empty KB shows: the ways to fill it, each with a button.

import { post } from "./api.js";
import { make, problem, say } from "./dom.js";
import { CLOSED, current, go, link } from "./route.js";

const INSTALL = "pair install --source URL";

/** Shown wherever a KB without documents is searched, asked or listed. */
export function emptyKb() {
  const isDefault = ["", "default"].includes(current().kb);
  return make("div", { class: "empty" }, make("strong", {}, "This knowledge base is empty"),
    make("p", {}, "Add documents, then search them and ask questions."),
    make("div", { class: "first" },
      way("Files", "Documents from this computer.", make("div", { class: "row" },
        make("button", { type: "button", class: "primary", onclick: () => choose("files") }, "Upload files"),
        make("button", { type: "button", class: "plain", onclick: () => choose("folder") }, "Upload a folder"))),
      isDefault ? way("Web pages", "The server reads a page now, and again when it changes.", addressForm()) : null,
      isDefault ? way("A package", "A published knowledge base. Run this command in the folder of the server.", copyable(INSTALL)) : null,
      isDefault ? way("A folder of the server", "Documents that stay in sync. Run this command in the folder of the server.", copyable("pair add ./docs")) : null));
}

function way(name, text, action) {
  return make("section", { class: "card" }, make("h2", {}, name), make("p", { class: "quiet" }, text), action);
}

/** Open the view of documents and its file picker: the browser allows it because the user pressed a button. */
function choose(picker) {
  if (current().view !== "documents") go(link({ view: "documents", ...CLOSED, q: "", at: "" }));
  document.getElementById(picker).click();
}

function copyable(command) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(command);
      say("Copied");
    } catch {
      say("The browser does not allow copying: select the command.");
    }
  };
  return make("div", { class: "row" }, make("code", { tabindex: 0 }, command),
    make("button", { type: "button", class: "plain", "aria-label": `Copy ${command}`, onclick: copy }, "Copy"));
}

/** Add a page to the links of the server and read it. `onRead` is called then. */
export function addressForm(onRead = () => {}) {
  const field = make("input", { type: "url", required: true, placeholder: "https://example.com/guide", "aria-label": "Address of a page" });
  const result = make("div", { class: "result", role: "status" });
  const add = async (event) => {
    event.preventDefault();
    try {
      const { added } = await post("/sync/links", { url: field.value.trim() });
      field.value = "";
      result.replaceChildren(make("p", {}, added ? "Added. Reading it…" : "The server knows this page. Reading it…"));
      await post("/sync", {}).catch(() => {}); // its state says why the page could not be read
      result.replaceChildren(make("p", {}, added ? "Added. " : "The server knows this page. ",
        make("a", { href: link({ view: "sources", ...CLOSED, q: "", at: "" }) }, "See its state")));
      onRead();
    } catch (fault) {
      result.replaceChildren(problem(fault));
    }
  };
  return make("form", { class: "row adding", onsubmit: add }, field, make("button", { type: "submit", class: "primary" }, "Add"), result);
}
