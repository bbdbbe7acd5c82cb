// An answer without a model: the paragraph of the first passage that says most of what the question asks.

import { analyse, splitPieces } from "./tokenizer.js";

const LONGEST_QUOTE = 700;
/** From this probability of the first passage on, its best paragraph is shown as the answer. */
const ANSWER_FROM = 0.5;
/** Below this, the passages are said not to answer. */
export const NOTHING_BELOW = 0.15;

/** Returns the paragraphs of a text; a heading belongs to the paragraph after it, and fenced code is one paragraph. */
export function splitParagraphs(text) {
  const paragraphs = [];
  let [heading, lines, fence] = ["", [], ""];
  const end = () => {
    const block = lines.join("\n").trim();
    lines = [];
    if (/^#{1,6} [^\n]*$/.test(block)) heading += `${block}\n\n`;
    else if (block) {
      paragraphs.push({ heading, text: block, isCode: /^(```|~~~)/.test(block) });
      heading = "";
    }
  };
  for (const line of text.split("\n")) {
    const mark = line.match(/^\s*(```|~~~)/)?.[1] ?? "";
    if (!fence && (mark || !line.trim())) end();
    lines.push(line);
    if (fence && mark === fence) {
      fence = "";
      end();
    } else if (!fence) fence = mark;
  }
  end();
  return paragraphs.length ? paragraphs : [{ heading: "", text: heading.trim(), isCode: false }];
}

/** Returns a quotation and the passage that it is from; null if no passage is probable enough. `weights`: those of the query's terms. */
export function quote({ hits, weights }) {
  if (!hits.length || hits[0].score < ANSWER_FROM) return null;
  const weigh = (text) => {
    const terms = new Set(splitPieces(text).flatMap((piece) => {
      const { terms, extras } = analyse(piece);
      return [...terms, ...extras];
    }));
    return [...weights].reduce((sum, [term, weight]) => sum + (terms.has(term) ? weight : 0), 0);
  };
  const paragraphs = splitParagraphs(hits[0].text);
  // Words of a heading or of code count less than those of a sentence.
  const scores = paragraphs.map(({ heading, text, isCode }) => (isCode ? 0.5 : 1) * weigh(text) + 0.5 * weigh(heading));
  const best = scores.indexOf(Math.max(...scores));
  const { text } = paragraphs[best];
  const isLong = text.length > LONGEST_QUOTE;
  return { text: isLong ? `${text.slice(0, text.lastIndexOf(" ", LONGEST_QUOTE))} …` : text, passage: hits[0] };
}
