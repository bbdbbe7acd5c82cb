// Passages of the best rows: neighbours are merged, and copies of one text are folded.

import { foldCase, splitPieces } from "./tokenizer.js";

const LONGEST_PASSAGE = 6000;
const FIRST_WORDS = 4;
const MOST_ROWS = 4000;

/** Returns passages of rows, best first. `texts`: the rows with their documents. */
export function mergeNeighbours(ranked, texts) {
  const byRow = [...ranked].sort((left, right) => left.row - right.row);
  const groups = [];
  for (const each of byRow) {
    const [text, last] = [texts.get(each.row), groups.at(-1)];
    if (last && continues(texts, last.at(-1).row, each.row, texts.get(last[0].row).start, text)) last.push(each);
    else groups.push([each]);
  }
  const passages = groups.map((group) => {
    const best = group.reduce((left, right) => (left.place < right.place ? left : right));
    const [first, last] = [group[0].row, group.at(-1).row];
    return {
      ...texts.get(best.row), ...best, text: joinTexts(texts, first, last),
      start: texts.get(first).start, end: texts.get(last).end, copies: 0,
    };
  });
  return passages.sort((left, right) => left.place - right.place);
}

function continues(texts, lastRow, row, start, text) {
  const last = texts.get(lastRow);
  if (row !== lastRow + 1 || last.id !== text.id || last.gap === null) return false;
  return text.end - start <= LONGEST_PASSAGE;
}

function joinTexts(texts, first, last) {
  let joined = "";
  for (let row = first; row <= last; row += 1) joined += texts.get(row).text + (row < last ? texts.get(row).gap : "");
  return joined;
}

const beginText = (text) => splitPieces(text).slice(0, FIRST_WORDS).map(foldCase).join(" ");

/** Folds passages with the same text, apart from case and blanks, into the best of them. */
export function foldDuplicates(passages) {
  const beginnings = passages.map((passage) => beginText(passage.text));
  const frequencies = new Map();
  for (const beginning of beginnings) frequencies.set(beginning, (frequencies.get(beginning) ?? 0) + 1);
  const alike = new Map();
  passages.forEach((passage, place) => {
    const isAlone = frequencies.get(beginnings[place]) === 1;
    const key = isAlone ? `first ${beginnings[place]}` : `whole ${foldCase(splitPieces(passage.text).join(" "))}`;
    if (alike.has(key)) alike.get(key).copies += 1;
    else alike.set(key, passage);
  });
  return [...alike.values()];
}

/** Returns passages for ranked candidates, if possible as many as wanted. `texts`: reads rows. */
export async function buildPassages(ranked, limit, texts) {
  ranked.forEach((each, place) => (each.place = place));
  for (let wanted = limit; ; wanted *= 2) {
    const rows = ranked.slice(0, wanted);
    const loaded = await texts.load(rows.map((each) => each.row));
    const passages = foldDuplicates(mergeNeighbours(rows.filter((each) => loaded.has(each.row)), loaded)).slice(0, limit);
    if (passages.length === limit || wanted >= Math.min(ranked.length, MOST_ROWS)) return passages;
  }
}
