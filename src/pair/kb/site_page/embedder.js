// The vector of a question: the sum of its token vectors, scaled to length 1. No model runs.

import { readHalves } from "./bytes.js";
import { countAlnum } from "./tokenizer.js";

const SPACE = "\u2581";
const encoder = new TextEncoder();

/** Returns the pieces of a text that are tokenized alone. */
export function splitText(text) {
  if (!text.trim()) return [];
  const clean = text.replace(/\p{Surrogate}/gu, "\ufffd");
  const spaced = clean.replaceAll("\n", " \n");
  if (!spaced.includes(SPACE) && !spaced.includes("  ") && spaced[0] !== " ") return spaced.split(" ");
  const written = SPACE + clean.replaceAll(" ", SPACE);
  const pieces = written.match(/\u2581+[^\u2581\n]*|\n[^\u2581\n]*/g) ?? [];
  return pieces.map((piece) => (piece[0] === SPACE && piece[1] !== SPACE ? piece.slice(1) : piece));
}

const isBefore = (left, right) => {
  const place = left.findIndex((value, number) => value !== right[number]);
  return place >= 0 && left[place] < right[place];
};

/** Returns the token ids of a piece by byte-pair encoding. `ids`: the id of each token. */
export function findTokens(piece, ids) {
  const written = piece.startsWith(SPACE) || piece.startsWith("\n") ? piece : SPACE + piece;
  // The last of several spaces belongs to the word after them.
  const spaces = /^\u2581+(?=\u2581[^\u2581])/.exec(written)?.[0] ?? "";
  return [...(spaces ? mergeParts(spaces, ids) : []), ...mergeParts(written.slice(spaces.length), ids)];
}

function mergeParts(written, ids) {
  const spell = (letter) => Array.from(encoder.encode(letter), (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
  const parts = [...written].flatMap((letter) => (ids.has(letter) ? [letter] : spell(letter)));
  for (;;) {
    let best = null;
    for (let place = 0; place + 1 < parts.length; place += 1) {
      const joined = ids.get(parts[place] + parts[place + 1]);
      if (joined === undefined) continue;
      const pair = [joined, ids.get(parts[place]), ids.get(parts[place + 1]), place];
      if (!best || isBefore(pair, best)) best = pair;
    }
    if (!best) return parts.map((part) => ids.get(part));
    parts.splice(best[3], 2, parts[best[3]] + parts[best[3] + 1]);
  }
}

export class Embedder {
  /** `tokens`: all tokens by id. `directory`: where their vectors are. `vectors`: those of frequent tokens. */
  constructor(tokens, directory, vectors, dimension, readUnits) {
    this.ids = new Map(tokens.map((token, id) => [token, id]));
    this.dimension = dimension;
    this.inUnit = directory.in_unit;
    this.readUnits = readUnits;
    this.places = new Int32Array(tokens.length).fill(-1);
    directory.frequent.forEach((id, place) => (this.places[id] = place));
    this.rare = new Int32Array(tokens.length);
    for (let id = 0, place = 0; id < tokens.length; id += 1) if (this.places[id] < 0) this.rare[id] = place++;
    this.frequent = readHalves(vectors);
  }

  tokenize(text) {
    return splitText(text).flatMap((piece) => findTokens(piece, this.ids));
  }

  /** Returns the vector of a text, its weight from 0 to 1, and the number of tokens that could not be read. */
  async embed(text) {
    const tokens = this.tokenize(text);
    const wanted = new Set(tokens.filter((id) => this.places[id] < 0).map((id) => Math.floor(this.rare[id] / this.inUnit)));
    const units = new Map();
    for (const [number, content] of await this.readUnits("tokens", [...wanted])) units.set(number, readHalves(content));
    const [size, sums] = [this.dimension, new Float32Array(this.dimension)];
    let missing = 0;
    for (const id of tokens) {
      const isFrequent = this.places[id] >= 0;
      const table = isFrequent ? this.frequent : units.get(Math.floor(this.rare[id] / this.inUnit));
      const first = size * (isFrequent ? this.places[id] : this.rare[id] % this.inUnit);
      if (!table) missing += 1;
      else for (let place = 0; place < size; place += 1) sums[place] += table[first + place];
    }
    const length = Math.sqrt(sums.reduce((sum, value) => sum + value * value, 0));
    const rate = tokens.length ? Math.min(Math.max(countAlnum(text) / tokens.length - 1, 0), 1) : 0;
    return { vector: length > 0 ? sums.map((value) => value / length) : null, fit: rate, missing };
  }
}
