// Distances of all rows to a question: from 16-bit vectors, or from codes of a few bytes.

import { readHalves } from "./bytes.js";

export class Vectors {
  constructor(about, content, rows) {
    this.rows = rows;
    this.dimension = about.dimension;
    this.parts = about.kind === "codes" ? about.parts : 0;
    if (this.parts) {
      const valuesBytes = 256 * this.dimension * 2;
      this.values = readHalves(content.slice(0, valuesBytes));
      this.codes = content.subarray(valuesBytes);
      return;
    }
    const view = new DataView(content.buffer, content.byteOffset, content.byteLength);
    this.values = new Float32Array(rows * this.dimension);
    for (let row = 0, place = 0; row < rows; row += 1) {
      const factor = view.getFloat32(4 * row, true);
      for (let end = place + this.dimension; place < end; place += 1) {
        this.values[place] = factor * view.getInt16(4 * rows + 2 * place, true);
      }
    }
  }

  /** Returns the Euclidean distance of each row. */
  distances(query) {
    const found = new Float32Array(this.rows);
    if (this.parts) this.#byCode(query, found);
    else this.#exactly(query, found);
    return found;
  }

  #exactly(query, found) {
    const [values, size] = [this.values, this.dimension];
    for (let row = 0, first = 0; row < found.length; row += 1, first += size) {
      let sum = 0;
      for (let place = 0; place < size; place += 1) {
        const difference = values[first + place] - query[place];
        sum += difference * difference;
      }
      found[row] = Math.sqrt(sum);
    }
  }

  #byCode(query, found) {
    const [parts, size, codes] = [this.parts, this.dimension / this.parts, this.codes];
    const table = new Float32Array(parts * 256);
    for (let entry = 0; entry < table.length; entry += 1) {
      const first = (entry >> 8) * size;
      for (let place = 0; place < size; place += 1) table[entry] += (this.values[entry * size + place] - query[first + place]) ** 2;
    }
    for (let row = 0, first = 0; row < found.length; row += 1, first += parts) {
      let sum = 0;
      for (let part = 0; part < parts; part += 1) sum += table[(part << 8) | codes[first + part]];
      found[row] = Math.sqrt(sum);
    }
  }
}

const BUCKETS = 4096;
const FARTHEST = 4;

/** Returns the nearest rows with all ties of the last one, and the ascending distances of the nearest. */
export function findNearest(distances, limit) {
  // Counting by bucket finds a bound, so that few distances are sorted.
  const bucketOf = (distance) => Math.min(Math.floor((distance * BUCKETS) / FARTHEST), BUCKETS - 1);
  const counts = new Int32Array(BUCKETS);
  for (let row = 0; row < distances.length; row += 1) counts[bucketOf(distances[row])] += 1;
  let last = 0;
  for (let count = counts[0]; count < limit && last < BUCKETS - 1; count += counts[last]) last += 1;
  const near = [];
  for (let row = 0; row < distances.length; row += 1) if (bucketOf(distances[row]) <= last) near.push(row);
  const sorted = Float32Array.from(near, (row) => distances[row]).sort();
  const farthest = sorted[Math.min(limit, sorted.length) - 1];
  const rows = near.filter((row) => distances[row] <= farthest);
  return { rows, near: sorted.subarray(0, rows.length) };
}
