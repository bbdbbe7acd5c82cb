// The current place, stored after the # of the address, so that reload, back and links lead to it.

const VIEWS = ["search", "ask", "documents", "sources", "versions", "server"];
// at: the version that is searched and read; "" for the current one. span: a passage of the open document.
// quote: the quoted words, which are marked instead of the passage.
const KEPT = ["q", "mode", "filter", "kb", "at", "doc", "span", "quote", "entity", "tab", "a", "b"];

let onMove = () => {};

export function current() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parameters = new URLSearchParams(query);
  const route = { view: VIEWS.includes(path) ? path : "search" };
  for (const name of KEPT) route[name] = parameters.get(name) || "";
  return route;
}

/** Return the address of the current place with these changes. */
export function link(changes) {
  const route = { ...current(), ...("doc" in changes ? { quote: "" } : {}), ...changes };
  const parameters = new URLSearchParams();
  for (const name of KEPT) if (route[name]) parameters.set(name, route[name]);
  const query = parameters.toString();
  return `#/${route.view}${query ? `?${query}` : ""}`;
}

/** Of an open document or entity; none of them when it is closed. */
export const CLOSED = { doc: "", span: "", quote: "", entity: "", tab: "" };

function isOpen(route) {
  return Boolean(route.doc || route.entity);
}

export function go(hash) {
  const depth = isOpen(current()) ? history.state?.depth || 0 : 0;
  const was = isOpen(current());
  if (hash !== location.hash) history.pushState(null, "", hash);
  // How many steps lead back to where nothing was open; 0 when the page began with it open.
  const opened = isOpen(current()) && (depth || !was) ? depth + 1 : 0;
  history.replaceState({ depth: opened }, "");
  onMove(current());
}

/** Change the address without a step in the history, while the user types. */
export function amend(changes) {
  history.replaceState(history.state, "", link(changes));
}

/** Return to the place without an open document. */
export function close() {
  if (!isOpen(current())) return;
  if (history.state?.depth) history.go(-history.state.depth);
  else {
    amend(CLOSED);
    onMove(current());
  }
}

export function follow(act) {
  onMove = act;
  addEventListener("popstate", () => onMove(current()));
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest?.("a[href^='#/']");
    if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(anchor.getAttribute("href"));
  });
  onMove(current());
}
