// The files of the site: fetched by byte range where the host allows it, and checked before they are used.

import { sha256 } from "./bytes.js";
import { verify } from "./signature.js";

const FORMAT = 1;
const HASH_LETTERS = 32;
const WORTH_JOINING = 4096;
/** The name of the cache of whole files. */
const DATA_CACHE = "pair-site-data";

/** A failure with a kind: `changed`, `missing`, `replaced`, `offline` or `unusable`. */
export class SiteError extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

async function openCache() {
  try {
    return await globalThis.caches?.open(DATA_CACHE);
  } catch {
    return undefined;
  }
}

export class Source {
  /** `base`: the address of the site's folder, with a slash at the end. */
  constructor(base, { fetcher = (...given) => fetch(...given), onNote = () => {} } = {}) {
    this.base = base;
    this.fetcher = fetcher;
    this.onNote = onNote;
    this.whole = new Map();
    this.units = new Map();
    this.places = new Map();
    this.missing = new Set();
  }

  async #get(path, options = {}) {
    let response;
    try {
      response = await this.fetcher(new URL(path, this.base).href, options);
    } catch {
      throw new SiteError("offline", `Cannot load ${path}: the host cannot be reached, and there is no offline copy.`);
    }
    if (!response.ok) throw new SiteError("missing", `Cannot load ${path}: the host answers ${response.status}.`);
    const content = new Uint8Array(await response.arrayBuffer());
    return { status: response.status, content };
  }

  /** Reads and checks the manifest. `pinned`: the key that must have signed it; "" for any. */
  async open(pinned = "") {
    try {
      this.about = await this.#readSigned(pinned);
    } catch (fault) {
      if (fault.kind !== "changed") throw fault;
      // While the site is replaced, manifest and signature may be of two versions: then both are read once more.
      this.about = await this.#readSigned(pinned);
    }
    return this.about;
  }

  async #readSigned(pinned) {
    const [content, about] = await this.#readManifest();
    if (about.format !== FORMAT) throw new SiteError("unusable", "This site was written by another version of pair. Reload the page.");
    if (pinned && about.key !== pinned) {
      const found = about.key ? "signed by another key than" : "not signed by";
      throw new SiteError("changed", `Refused: this site is ${found} the key that you trust. If its publisher has a new key, open a link with it.`);
    }
    if (!about.key) return about;
    try {
      const { content: signature } = await this.#get("site.json.minisig", { cache: "no-cache" });
      await verify(content, signature, about.key);
    } catch (fault) {
      if (fault.kind === "offline") throw fault;
      throw new SiteError("changed", `Refused: the signature of site.json is not valid: ${fault.message}`);
    }
    return about;
  }

  async #readManifest() {
    const { content } = await this.#get("site.json", { cache: "no-cache" });
    try {
      return [content, JSON.parse(new TextDecoder().decode(content))];
    } catch {
      throw new SiteError("changed", "Refused: site.json is not a manifest.");
    }
  }

  /** Returns the sections of the file that every query needs. */
  async readStart() {
    const { name, size, sha256: expected } = this.about.start;
    const content = await this.#readWhole(name);
    if (content.length !== size || (await sha256(content)) !== expected) {
      await this.#drop(name);
      throw this.#refuse(name, 0, content.length);
    }
    await this.#store(name, content);
    const cut = ([name, [start, end]]) => [name, content.subarray(start, end)];
    return Object.fromEntries(Object.entries(this.about.sections).map(cut));
  }

  /** Tells where the units of each kind are. `index`: the index of the site. */
  setIndex(index) {
    for (const [kind, directory] of Object.entries(index)) {
      if (!directory.sizes) continue;
      const [places, files] = [[], this.about.files[kind]];
      let [file, offset] = [0, 0];
      directory.sizes.forEach((size, number) => {
        if (offset + size > files[file][1]) [file, offset] = [file + 1, 0];
        const hash = directory.hashes.slice(number * HASH_LETTERS, (number + 1) * HASH_LETTERS);
        places.push({ number, file: files[file][0], size: files[file][1], start: offset, end: offset + size, hash });
        offset += size;
      });
      this.places.set(kind, places);
    }
  }

  /** Returns units by number; those in a file that is missing are left out and noted. */
  async readUnits(kind, numbers) {
    const places = numbers.map((number) => this.places.get(kind)[number]);
    const found = new Map();
    const fetched = this.#join(places.filter((place) => !this.units.has(place.hash)));
    await Promise.all(fetched.map((group) => this.#readGroup(group, kind === "tokens")));
    for (const place of places) if (this.units.has(place.hash)) found.set(place.number, this.units.get(place.hash));
    return found;
  }

  /** Groups units that are close together in one file. */
  #join(places) {
    const groups = [];
    const ordered = [...places].sort((left, right) => (left.file < right.file ? -1 : left.file > right.file ? 1 : left.start - right.start));
    for (const place of ordered) {
      const last = groups.at(-1)?.at(-1);
      if (last && last.file === place.file && place.start - last.end <= WORTH_JOINING) groups.at(-1).push(place);
      else groups.push([place]);
    }
    return groups;
  }

  /** `mayLack`: whether a search goes on without the group while the host cannot be reached. */
  async #readGroup(group, mayLack) {
    const { file } = group[0];
    try {
      const [start, end] = [group[0].start, group.at(-1).end];
      const content = await this.#readRange(file, start, end);
      if (await this.#keep(group, content, start)) return;
      // A proxy may have changed the range, as by compressing it: the whole file decides.
      this.whole.delete(file);
      await this.#drop(file);
      const { content: whole } = await this.#get(`data/${file}`, { cache: "reload" });
      if (!(await this.#keep(group, whole, 0))) throw this.#refuse(file, start, end);
    } catch (fault) {
      if (mayLack && fault.kind === "offline") return;
      if (fault.kind !== "missing") throw fault;
      this.missing.add(file);
      await this.#explainMissing(fault);
    }
  }

  async #explainMissing(fault) {
    let current = null;
    try {
      [, current] = await this.#readManifest();
    } catch {
      // The first failure is the one to report.
    }
    if (current && current.start?.name !== this.about.start.name) {
      throw new SiteError("replaced", "This knowledge base was replaced by a newer version. Reload the page.");
    }
    this.onNote("missing", `${fault.message} Results may be incomplete.`);
  }

  /** Keeps the units that are what the index says. Returns whether all are. */
  async #keep(group, content, start) {
    const parts = group.map((place) => content.subarray(place.start - start, place.end - start));
    const hashes = await Promise.all(parts.map((part) => sha256(part)));
    const isSound = group.every((place, number) => hashes[number].startsWith(place.hash));
    if (isSound) group.forEach((place, number) => this.units.set(place.hash, parts[number]));
    return isSound;
  }

  async #readRange(file, start, end) {
    const held = this.whole.get(file) ?? (await this.#readCopy(file));
    if (held) return held.subarray(start, end);
    const { status, content } = await this.#get(`data/${file}`, { headers: { Range: `bytes=${start}-${end - 1}` } });
    if (status === 206) return content;
    this.onNote("whole", "This host does not serve parts of files: whole files are loaded, which takes longer.");
    this.whole.set(file, content);
    return content.subarray(start, end);
  }

  async #readWhole(file) {
    const copy = await this.#readCopy(file);
    return copy ?? (await this.#get(`data/${file}`)).content;
  }

  async #readCopy(file) {
    const copy = await (await openCache())?.match(new URL(`data/${file}`, this.base).href);
    if (!copy) return undefined;
    const content = new Uint8Array(await copy.arrayBuffer());
    this.whole.set(file, content);
    return content;
  }

  async #store(file, content) {
    const cache = await openCache();
    await cache?.put(new URL(`data/${file}`, this.base).href, new Response(content)).catch(() => {});
  }

  async #drop(file) {
    await (await openCache())?.delete(new URL(`data/${file}`, this.base).href);
  }

  #refuse(file, start, end) {
    return new SiteError("changed", `Refused: data/${file} was changed. Bytes ${start} to ${end} do not match the manifest.`);
  }

  /** Returns names and sizes of all data files but the vectors of rare tokens. */
  listFiles() {
    const { start, files } = this.about;
    return [[start.name, start.size], ...files.terms, ...files.texts, ...files.words];
  }

  /** Stores whole files, so that the site works offline, and removes those of other versions. */
  async keepOffline() {
    const cache = await openCache();
    if (!cache) return;
    const wanted = new Map(this.listFiles().map(([name]) => [new URL(`data/${name}`, this.base).href, name]));
    for (const { url } of await cache.keys()) {
      if (url.startsWith(new URL("data/", this.base).href) && !wanted.has(url)) await cache.delete(url);
    }
    for (const [url, name] of wanted) {
      if (await cache.match(url)) continue;
      await this.#store(name, (await this.#get(`data/${name}`)).content);
    }
  }
}
