// Markdown as elements. Text is always set as text, so the text of a document cannot become markup.
//
// A document is parsed into blocks whose text keeps the offset of each of its characters in the source:
// so passages and matched words can be marked in the rendered text.

import { make, places } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})\s+(?=\S)/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+•]|\d{1,9}[.)])\s+(?=\S)/;
const TABLE_RULE = /^\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?\s*$/;
const INDENTED = /^(?: {4}|\t)/;
const INLINE = new RegExp([
  "(?<ticks>`+)(?<code>.+?)\\k<ticks>(?!`)",
  "!?\\[(?<label>[^\\]\\n]{1,300})\\]\\((?<address>(?:[^()\\s]|\\([^()\\s]*\\)){0,2000})(?:\\s+\"[^\"]*\")?\\)",
  "\\[\\[(?<wiki>[^\\]\\n|]{1,200})(?:\\|(?<shown>[^\\]\\n]{1,200}))?\\]\\]",
  "\\[(?<number>\\d{1,3})\\]",
  "<(?<auto>https?://[^\\s<>]{1,2000})>",
  "(?<strong>\\*\\*|__)(?=\\S)(?<bold>.+?)(?<=\\S)\\k<strong>",
  "(?<![\\w*])(?<weak>[*_])(?=[^\\s*_])(?<italic>[^*\\n]*?[^\\s*])\\k<weak>(?![\\w*])",
  "\\\\(?<escaped>[!-/:-@\\[-`{-~])",
].join("|"), "gs");

/** A stretch of text with the offset of each character in the source. */
class Piece {
  constructor(text, origin) {
    this.text = text;
    this.origin = origin;
  }

  static of(source, lines) {
    const text = lines.map(([start, end]) => source.slice(start, end)).join("\n");
    const origin = lines.flatMap(([start, end]) => Array.from({ length: end - start + 1 }, (_, index) => start + index));
    return new Piece(text, origin);
  }

  slice(from, to) {
    return new Piece(this.text.slice(from, to), this.origin.slice(from, to));
  }

  trim() {
    const from = this.text.length - this.text.trimStart().length;
    return this.slice(from, Math.max(from, this.text.trimEnd().length));
  }

  split(at) {
    const pieces = [];
    let from = 0;
    for (const place of at) {
      pieces.push(this.slice(from, place));
      from = place + 1;
    }
    return [...pieces, this.slice(from, this.text.length)];
  }
}

// ── blocks ──

function linesOf(source) {
  const lines = [];
  let start = 0;
  for (const line of source.split("\n")) {
    lines.push([start, start + line.length]);
    start += line.length + 1;
  }
  return lines;
}

/** `{kind, piece}`, with `level`, `rows` or `items` (lists of blocks) where the kind has them. */
function parse(source, lines) {
  const blocks = [];
  const textOf = (number) => (number < lines.length ? source.slice(...lines[number]) : "");
  const isBlank = (number) => !textOf(number).trim();
  const begins = (number) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((mark) => mark.test(textOf(number)));
  const isOfList = (number) => ITEM.test(textOf(number)) || /^\s+\S/.test(textOf(number));
  const isContinued = (number) => !isBlank(number) && !begins(number) && !isBlank(number - 1);
  const takeWhile = (from, isInside) => {
    let end = from;
    while (end < lines.length && isInside(end)) end += 1;
    return end;
  };
  let at = 0;
  while (at < lines.length) {
    const text = textOf(at);
    const fence = FENCE.exec(text)?.[1];
    let end = at + 1;
    if (!text.trim() || RULE.test(text)) {
      // Blank lines and rules only separate blocks.
    } else if (fence) {
      const closing = takeWhile(at + 1, (number) => !textOf(number).trim().startsWith(fence));
      blocks.push({ kind: "code", piece: Piece.of(source, lines.slice(at + 1, closing)) });
      end = closing + 1;
    } else if (HEADING.test(text)) {
      const mark = HEADING.exec(text);
      const length = text.replace(/\s+#*\s*$/, "").length;
      blocks.push({ kind: "heading", level: mark[1].length, piece: Piece.of(source, [[lines[at][0] + mark[0].length, lines[at][0] + length]]) });
    } else if (QUOTE.test(text)) {
      end = takeWhile(at, (number) => QUOTE.test(textOf(number)));
      const inner = lines.slice(at, end).map(([from, to]) => [from + QUOTE.exec(source.slice(from, to))[0].length, to]);
      blocks.push({ kind: "quote", blocks: parse(source, inner) });
    } else if (ITEM.test(text)) {
      end = takeWhile(at, (number) => isOfList(isBlank(number) ? number + 1 : number) || (number > at && isContinued(number)));
      blocks.push(list(source, lines.slice(at, end)));
    } else if (text.includes("|") && TABLE_RULE.test(textOf(at + 1)) && textOf(at + 1).includes("-")) {
      end = takeWhile(at, (number) => textOf(number).includes("|"));
      const rows = lines.slice(at, end).filter((_, number) => number !== 1).map((line) => cells(Piece.of(source, [line])));
      blocks.push({ kind: "table", rows });
    } else if (INDENTED.test(text)) {
      end = takeWhile(at, (number) => INDENTED.test(textOf(number)) || (isBlank(number) && INDENTED.test(textOf(number + 1))));
      blocks.push({ kind: "code", piece: Piece.of(source, lines.slice(at, end)) });
    } else {
      end = takeWhile(at + 1, (number) => !isBlank(number) && !begins(number));
      blocks.push({ kind: "text", piece: Piece.of(source, lines.slice(at, end)).trim() });
    }
    at = end;
  }
  return blocks;
}

function list(source, lines) {
  const marks = lines.map(([from, to]) => ITEM.exec(source.slice(from, to)));
  const least = marks[0][1].length + 1;
  const starts = marks.flatMap((mark, number) => (mark && mark[1].length <= least ? [number] : []));
  const items = starts.map((start, number) => {
    const own = lines.slice(start, starts[number + 1] ?? lines.length);
    const width = marks[start][0].length;
    const inner = own.map(([from, to], row) => {
      const blanks = source.slice(from, to).length - source.slice(from, to).trimStart().length;
      return [from + (row ? Math.min(width, blanks) : width), to];
    });
    return parse(source, inner);
  });
  return { kind: /\d/.test(marks[0][2]) ? "numbers" : "points", first: Number.parseInt(marks[0][2], 10) || 1, items };
}

function cells(row) {
  const inner = row.trim();
  const bars = [...inner.text.matchAll(/(?<!\\)\|/g)].map((match) => match.index);
  const parts = inner.split(bars).map((part) => part.trim());
  if (parts.length > 1 && !parts[0].text) parts.shift();
  if (parts.length > 1 && !parts.at(-1).text) parts.pop();
  return parts;
}

// ── rendering ──

/** `spans`: what is marked, as [start, end] of characters; `attributes`: of the marks; `cite`: the element for [1]. */
class Painter {
  constructor(source, { spans = [], attributes = {}, cite = null } = {}) {
    const place = places(source);
    this.spans = spans.map(([start, end]) => [place(start), place(end)]).sort((one, other) => one[0] - other[0]);
    this.attributes = attributes;
    this.cite = cite;
  }

  isMarked(offset) {
    return this.spans.some(([start, end]) => start <= offset && offset < end);
  }

  /** Return plain text, with the marked spans in <mark>. */
  plain(piece) {
    const parts = [];
    let from = 0;
    for (let to = 1; to <= piece.text.length; to += 1) {
      const isInside = this.spans.length > 0 && this.isMarked(piece.origin[from]);
      if (to < piece.text.length && (!this.spans.length || this.isMarked(piece.origin[to]) === isInside)) continue;
      const text = piece.text.slice(from, to);
      parts.push(isInside ? make("mark", this.attributes, text) : text);
      from = to;
    }
    return parts;
  }

  inline(piece) {
    const parts = [];
    let done = 0;
    for (const match of piece.text.matchAll(INLINE)) {
      parts.push(...this.plain(piece.slice(done, match.index)), this.element(piece, match));
      done = match.index + match[0].length;
    }
    return [...parts, ...this.plain(piece.slice(done, piece.text.length))];
  }

  element(piece, match) {
    const groups = match.groups;
    const inside = (text) => {
      const from = match.index + match[0].indexOf(text);
      return piece.slice(from, from + text.length);
    };
    const whole = piece.slice(match.index, match.index + match[0].length);
    if (groups.code !== undefined) return make("code", {}, this.plain(inside(groups.code)));
    if (groups.bold !== undefined) return make("strong", {}, this.inline(inside(groups.bold)));
    if (groups.italic !== undefined) return make("em", {}, this.inline(inside(groups.italic)));
    if (groups.escaped !== undefined) return this.plain(whole.slice(1, 2));
    if (groups.wiki !== undefined) return this.plain(inside(groups.shown || groups.wiki));
    if (groups.number !== undefined) return this.cite?.(Number(groups.number)) ?? this.plain(whole);
    const label = inside(groups.label ?? groups.auto);
    const address = groups.address ?? groups.auto;
    if (match[0].startsWith("!") || !/^https?:\/\//.test(address)) return this.inline(label);
    return make("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, groups.auto ? this.plain(label) : this.inline(label));
  }

  block(block) {
    if (block.kind === "heading") return make(`h${Math.min(6, block.level + 2)}`, {}, this.inline(block.piece));
    if (block.kind === "code") return make("pre", {}, make("code", {}, this.plain(block.piece)));
    if (block.kind === "quote") return make("blockquote", {}, block.blocks.map((each) => this.block(each)));
    if (block.kind === "table") return this.table(block.rows);
    if (block.kind === "text") return make("p", {}, this.inline(block.piece));
    return make(block.kind === "numbers" ? "ol" : "ul", { start: block.first > 1 ? block.first : null },
      block.items.map((item) => make("li", {}, this.item(item))));
  }

  /** Show an item of one paragraph without a paragraph element. */
  item(blocks) {
    const [first, ...rest] = blocks;
    if (first?.kind !== "text") return blocks.map((each) => this.block(each));
    return [...this.inline(first.piece), ...rest.map((each) => this.block(each))];
  }

  table([head, ...rows]) {
    return make("div", { class: "table" }, make("table", {},
      make("thead", {}, make("tr", {}, head.map((cell) => make("th", { scope: "col" }, this.inline(cell))))),
      make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, this.inline(cell))))))));
  }

  /** Return a block as inline text. */
  flow(block) {
    if (block.kind === "heading") return [make("strong", {}, this.inline(block.piece)), " "];
    if (block.kind === "code") return [make("code", {}, this.plain(block.piece)), " "];
    if (block.kind === "quote") return block.blocks.flatMap((each) => this.flow(each));
    if (block.kind === "text") return [...this.inline(block.piece), " "];
    if (block.kind === "table") return block.rows.flatMap((row) => [...row.flatMap((cell, number) => [number ? " · " : "", ...this.inline(cell)]), "; "]);
    return block.items.flatMap((item) => ["• ", ...item.flatMap((each) => this.flow(each))]);
  }
}

/** Return the elements of a whole text. */
export function renderMarkdown(source, options) {
  const painter = new Painter(source, options);
  return parse(source, linesOf(source)).map((block) => painter.block(block));
}

/** Return a passage as inline text: bold and code are kept, blocks become lines. */
export function renderSnippet(source, options) {
  const painter = new Painter(source, options);
  return parse(source, linesOf(source)).flatMap((block) => painter.flow(block));
}
