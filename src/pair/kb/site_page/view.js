// Elements of the page. Text is always set as text, so nothing that a document says can become markup.

import { findWords } from "./tokenizer.js";

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(key, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Returns the text of Markdown without its marks. */
export function stripMarks(markdown) {
  return markdown
    .replace(/^[ \t]*(?:```|~~~)[^\n]*\n?/gm, "")
    .replace(/^[ \t]*\|?[ \t]*:?-{3,}[-:| \t]*\n?/gm, "")
    .replace(/^#{1,6} +/gm, "")
    .replace(/^\| ?| ?\|$/gm, "")
    .replace(/\[([^\]\n]+)\]\([^)\s]*\)/g, "$1")
    .replace(/\*\*|`/g, "");
}

/** Returns a text with the words that the query asks for in <mark>. */
export function markWords(text, terms) {
  const parts = [];
  let done = 0;
  for (const piece of text.matchAll(/\S+/g)) {
    for (const word of findWords(piece[0])) {
      const [start, end] = [piece.index + word.start, piece.index + word.end];
      if (start < done || ![word.term, ...word.extras].some((term) => terms.has(term))) continue;
      parts.push(text.slice(done, start), make("mark", {}, text.slice(start, end)));
      done = end;
    }
  }
  return [...parts, text.slice(done)];
}

function nameDocument(passage) {
  const title = passage.title || passage.id;
  return /^https?:\/\//.test(passage.url) ? make("a", { href: passage.url, rel: "noreferrer" }, title) : title;
}

function locate(passage) {
  const places = [passage.id];
  if (passage.page) places.push(`page ${passage.page}`);
  places.push(`characters ${passage.start} to ${passage.end}`);
  if (passage.copies) places.push(passage.copies === 1 ? "1 copy" : `${passage.copies} copies`);
  return places.join(" · ");
}

export function showPassage(passage, terms) {
  const score = make("span", { class: "quiet" }, ` ${passage.score.toFixed(3)}`);
  return make("li", { "data-id": passage.id, "data-score": passage.score, "data-start": passage.start, "data-end": passage.end },
    make("h2", { dir: "auto" }, nameDocument(passage), score),
    make("p", { class: "quiet" }, locate(passage)),
    make("p", { class: "text", dir: "auto", tabindex: "0" }, markWords(stripMarks(passage.text), terms)));
}

export function showAnswer(found) {
  return [
    make("blockquote", { dir: "auto" }, stripMarks(found.text)),
    make("p", { class: "quiet" }, "From ", nameDocument(found.passage), ` (${locate(found.passage)})`),
  ];
}
