// The texts of rows, with the documents that they belong to.

import { inflate } from "./bytes.js";

export class Texts {
  constructor(firstRows, readUnits) {
    this.firstRows = firstRows;
    this.readUnits = readUnits;
    this.units = new Map();
  }

  #unitOf(row) {
    let [low, high] = [0, this.firstRows.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.firstRows[middle] <= row) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** Returns the rows that could be read, by number. */
  async load(rows) {
    const numbers = [...new Set(rows.map((row) => this.#unitOf(row)))];
    const missing = numbers.filter((number) => !this.units.has(number));
    for (const [number, content] of await this.readUnits("texts", missing)) {
      const pieces = JSON.parse(new TextDecoder().decode(await inflate(content)));
      this.units.set(number, readRows(pieces, this.firstRows[number]));
    }
    const found = new Map();
    for (const row of rows) {
      const text = this.units.get(this.#unitOf(row))?.get(row);
      if (text) found.set(row, text);
    }
    return found;
  }
}

function readRows(pieces, first) {
  const found = new Map();
  let row = first;
  for (const { id, title, url, rows } of pieces) {
    for (const [start, end, text, gap, page] of rows) {
      found.set(row, { id, title, url, start, end, text, gap, page });
      row += 1;
    }
  }
  return found;
}
