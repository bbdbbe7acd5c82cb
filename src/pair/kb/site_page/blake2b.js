// BLAKE2b with 64 bytes (RFC 7693), in BigInt: it hashes one small manifest.

const MASK = (1n << 64n) - 1n;
const START = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const ORDER = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4], [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13], [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11], [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5], [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
const MIXED = [
  [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
  [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
];
const BLOCK = 128;
const turn = (value, bits) => (value >> bits) | ((value << (64n - bits)) & MASK);

function mix(state, [a, b, c, d], x, y) {
  for (const [word, first, second] of [[x, 32n, 24n], [y, 16n, 63n]]) {
    state[a] = (state[a] + state[b] + word) & MASK;
    state[d] = turn(state[d] ^ state[a], first);
    state[c] = (state[c] + state[d]) & MASK;
    state[b] = turn(state[b] ^ state[c], second);
  }
}

function compress(hash, block, length, isLast) {
  const view = new DataView(block.buffer, block.byteOffset, BLOCK);
  const words = Array.from({ length: 16 }, (_, place) => view.getBigUint64(8 * place, true));
  const state = [...hash, ...START];
  state[12] ^= BigInt(length);
  if (isLast) state[14] ^= MASK;
  for (let round = 0; round < 12; round += 1) {
    const order = ORDER[round % 10];
    MIXED.forEach((places, number) => mix(state, places, words[order[2 * number]], words[order[2 * number + 1]]));
  }
  return hash.map((word, place) => word ^ state[place] ^ state[place + 8]);
}

/** Returns the hash of these bytes. */
export function blake2b(content) {
  const padded = new Uint8Array(Math.max(Math.ceil(content.length / BLOCK), 1) * BLOCK);
  padded.set(content);
  let hash = [START[0] ^ 0x01010040n, ...START.slice(1)];
  for (let end = BLOCK; end <= padded.length; end += BLOCK) {
    const isLast = end === padded.length;
    hash = compress(hash, padded.subarray(end - BLOCK, end), isLast ? content.length : end, isLast);
  }
  const view = new DataView(new ArrayBuffer(64));
  hash.forEach((word, place) => view.setBigUint64(8 * place, word, true));
  return new Uint8Array(view.buffer);
}
