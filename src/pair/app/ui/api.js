// Requests to the server that this page came from, and to no other.

const KEY = "pair.key";

export class Fault extends Error {
  constructor(status, error) {
    super(error.message || `HTTP ${status}`);
    this.status = status;
    this.code = error.code || "";
    this.suggestion = error.suggestion || "";
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

let onUnknown = () => {};

/** Register what to do when the server asks for credentials. */
export function whenUnknown(act) {
  onUnknown = act;
}

/** `used`: the key of the request. A refused key that was replaced since does not matter. */
async function faultOf(response, used) {
  const body = await response.json().catch(() => ({}));
  const fault = new Fault(response.status, body.error || {});
  if (response.status === 401 && used === key.get()) onUnknown(fault);
  return fault;
}

async function sent(path, options) {
  const headers = { ...options.headers };
  const used = key.get();
  if (used) headers.Authorization = `Bearer ${used}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit", redirect: "error" });
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    throw new Fault(0, { message: "The server does not respond", suggestion: "Check that `pair serve` is running." });
  }
  if (!response.ok) throw await faultOf(response, used);
  return response;
}

function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

export async function get(path, parameters, signal) {
  return (await sent(address(path, parameters), { signal })).json();
}

export async function remove(path, parameters) {
  return (await sent(address(path, parameters), { method: "DELETE" })).json();
}

/** Store a file as the document with this id. */
export async function upload(id, content, type, parameters) {
  const headers = type ? { "Content-Type": type } : {};
  return (await sent(address(documentPath(id), parameters), { method: "PUT", headers, body: content })).json();
}

const JSON_BODY = { "Content-Type": "application/json" };

export async function post(path, value, signal) {
  return (await sent(path, { method: "POST", headers: JSON_BODY, body: JSON.stringify(value), signal })).json();
}

/** Yield the parts of a response between separators as they arrive. */
async function* pieces(response, separator) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const found = (rest + (value || "")).split(separator);
    rest = done ? "" : found.pop();
    yield* found.filter((each) => each.trim());
    if (done) return;
  }
}

/** Server-sent events: `{event, data}`, with `data` read as JSON. */
export async function* events(path, value, signal) {
  const headers = { ...JSON_BODY, Accept: "text/event-stream" };
  const response = await sent(path, { method: "POST", headers, body: JSON.stringify(value), signal });
  for await (const piece of pieces(response, "\n\n")) {
    const lines = piece.split("\n").filter((line) => !line.startsWith(":"));
    const fields = Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
    if (fields.data) yield { event: fields.event, data: JSON.parse(fields.data) };
  }
}

/** Store a file with a document on each line. Yield what the server reports while it stores them. */
export async function* ingest(body, parameters) {
  const headers = { "Content-Type": "application/x-ndjson" };
  const response = await sent(address("/rag/ingest", parameters), { method: "POST", headers, body });
  for await (const line of pieces(response, "\n")) {
    const report = JSON.parse(line);
    if (report.type === "error") throw new Fault(response.status, report.error);
    yield report;
  }
}

/** The id is one path segment, so that dots in it cannot leave the path. */
export function documentPath(id) {
  return `/rag/docs/${encodeURIComponent(id)}`;
}
