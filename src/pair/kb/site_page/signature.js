// Signatures of minisign: Ed25519 over the BLAKE2b hash of a file, and a signed comment.

import { blake2b } from "./blake2b.js";

const UNTRUSTED = "untrusted comment: ";
const TRUSTED = "trusted comment: ";
const encoder = new TextEncoder();

function decode(line, size) {
  try {
    const content = Uint8Array.from(atob(line), (letter) => letter.charCodeAt(0));
    if (content.length === size && btoa(atob(line)) === line) return content;
  } catch {
    // Refused below.
  }
  throw new Error("it is damaged");
}

const joinBytes = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));
const isEqual = (left, right) => left.length === right.length && left.every((byte, place) => byte === right[place]);

/** Returns the id and the bytes of a public key on one line. */
export function parseKey(line) {
  const content = decode(line, 42);
  if (String.fromCharCode(...content.subarray(0, 2)) !== "Ed") throw new Error("it is an unsupported kind of key");
  const number = content.slice(2, 10);
  const id = Array.from(number, (byte) => byte.toString(16).padStart(2, "0")).reverse().join("").toUpperCase();
  return { number, id, key: content.slice(10) };
}

async function isValid(key, signature, message) {
  if (!globalThis.crypto?.subtle) throw new Error("signatures can be checked only over https or on this computer");
  let imported;
  try {
    imported = await crypto.subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
  } catch {
    throw new Error("this browser cannot check signatures; use a newer one");
  }
  return crypto.subtle.verify({ name: "Ed25519" }, imported, signature, message);
}

/** Throws with a reason unless the key signed this content. */
export async function verify(content, signature, keyLine) {
  const lines = new TextDecoder().decode(signature).replace(/[\r\n]+$/, "").split(/\r?\n/);
  const isWhole = lines.length === 4 && lines[0].startsWith(UNTRUSTED) && lines[2].startsWith(TRUSTED);
  if (!isWhole) throw new Error("it is not a signature of minisign");
  const [{ number, key }, value] = [parseKey(keyLine), decode(lines[1], 74)];
  const kind = String.fromCharCode(...value.subarray(0, 2));
  if (kind !== "ED") throw new Error("it is an unsupported kind of signature");
  if (!isEqual(value.subarray(2, 10), number)) throw new Error("a different key made it");
  const ofFile = value.slice(10);
  if (!(await isValid(key, ofFile, blake2b(content)))) throw new Error("the file is not the one that was signed");
  const comment = lines[2].slice(TRUSTED.length);
  const signed = joinBytes(ofFile, encoder.encode(comment));
  if (!(await isValid(key, decode(lines[3], 64), signed))) throw new Error("its trusted comment was changed");
}
