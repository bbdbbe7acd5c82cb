// Numbers, floats and compressed bytes of the data files.

/** Returns the bytes of raw deflate. */
export async function inflate(content) {
  const stream = new Blob([content]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Reads numbers in groups of seven bits, the lowest first. */
export class NumberReader {
  constructor(content, place = 0) {
    this.content = content;
    this.place = place;
  }

  next() {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = this.content[this.place++];
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  }

  take(size) {
    this.place += size;
    return this.content.subarray(this.place - size, this.place);
  }
}

let halves = null;

function makeHalves() {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits += 1) {
    const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    const value = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : (fraction / 1024) * 2 ** -14;
    table[bits] = sign * (exponent === 31 ? Number.NaN : value);
  }
  return table;
}

/** Returns float16 numbers as float32. */
export function readHalves(content) {
  halves ??= makeHalves();
  const [view, values] = [new DataView(content.buffer, content.byteOffset, content.byteLength), new Float32Array(content.byteLength / 2)];
  for (let place = 0; place < values.length; place += 1) values[place] = halves[view.getUint16(2 * place, true)];
  return values;
}

export const toHex = (content) => Array.from(content, (byte) => byte.toString(16).padStart(2, "0")).join("");

export async function sha256(content) {
  if (!globalThis.crypto?.subtle) {
    throw new Error("This page can check what it loads only over https or on this computer (localhost).");
  }
  return toHex(new Uint8Array(await crypto.subtle.digest("SHA-256", content)));
}
