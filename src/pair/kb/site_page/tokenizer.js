// Terms of a text, and the words that a query asks for: the same as the index has.

import { stemEnglish } from "./stemmer.js";

const BLANK = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const LETTER = "\\p{L}\\p{N}";
// Scripts without spaces between words, and Hangul, whose words carry particles.
const DENSE =
  "\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u3005-\\u3007\\u3040-\\u30ff\\u31f0-\\u31ff\\u3400-\\u4dbf" +
  "\\u4e00-\\u9fff\\u1100-\\u11ff\\u3130-\\u318f\\uac00-\\ud7af\\uf900-\\ufaff\\uff66-\\uff9f\\u{20000}-\\u{3ffff}";
const MARK = "\\p{M}&&[\\u0300-\\u1dff\\ua800-\\uabff]";
const JOINT = "[\\-_.\\/\\\\:@+#\\&=?%~,\\|]{1,3}";
const CONTRACTION = `(?:['\\u2019](?:[sStTdDmM]|[rR][eE]|[vV][eE]|[lL][lL])(?![${LETTER}]))?`;
const WORD = `(?:[[${LETTER}]--[${DENSE}]]|[${MARK}])+${CONTRACTION}`;
const COMPOUND =
  `(?:(?<![.@#${LETTER}_])[.@#])?(?:${WORD})(?:${JOINT}(?:${WORD}))*(?:\\+\\+(?![${LETTER}_])|#(?![${LETTER}_]))?`;
const CLUSTER = `[${DENSE}](?:[${MARK}]|[\\u200c\\u200d])*`;

const ANY = new RegExp(`(?<dense>(?:${CLUSTER})+)|${COMPOUND}`, "gv");
const WORDS = new RegExp(WORD, "gv");
const CLUSTERS = new RegExp(CLUSTER, "gv");
const BLANKS = new RegExp(`[${BLANK}]+`, "v");
const IS_JOINED = new RegExp(JOINT, "v");
const STRONG_JOINT = /[/\\:@#&=?%~,|]+/;
const HUMPS = /[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+/g;
const IS_PLAIN = /^(?:[0-9]+|[a-z]+|[A-Z][a-z]*|[A-Z]+)$/;
const IS_ASCII = /^[\x00-\x7f]*$/;
const OPTIONAL_MARKS = /[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]/g;
const HAS_LETTER = new RegExp(`[${LETTER}]`, "v");
const IS_ALNUM = new RegExp(`^[${LETTER}]+$`, "v");
const LONGEST_WORD = 64;
const LONGEST_WHOLE = 200;
const BEHIND = ".,;:!?)]}\"'*";
const BEFORE = "([{\"'*";

/** The weight of terms that are not words of the query: compounds, parts, corrections and stop words. */
export const SECONDARY = 0.5;
const WORDS_BESIDE_STRICT_PHRASES = 3;

export const splitPieces = (text) => text.split(BLANKS).filter(Boolean);
const count = (text) => [...text].length;
const cut = (text, size) => (text.length <= size ? text : [...text].slice(0, size).join(""));

function strip(text, before, behind) {
  let [start, end] = [0, text.length];
  while (end > start && behind.includes(text[end - 1])) end -= 1;
  while (start < end && before.includes(text[start])) start += 1;
  return text.slice(start, end);
}

/** Returns a text without case; Python calls this casefold. */
export const foldCase = (text) => text.toLowerCase().replaceAll("ß", "ss").replaceAll("ς", "σ").replaceAll("\u0345", "ι");

/** Returns a word without case and accents, and with one spelling for each character. */
export function fold(word) {
  if (IS_ASCII.test(word)) return word.toLowerCase();
  const plain = foldCase(word.normalize("NFKD")).replaceAll("\u2019", "'");
  return plain.replace(OPTIONAL_MARKS, "").normalize("NFKC").replaceAll(" ", "");
}

export const stem = (word) => (/^[a-z']{3,}$/.test(word) ? stemEnglish(word) : word);

function* splitDense(run, begin) {
  const clusters = Array.from(run.matchAll(CLUSTERS), (match) => [match.index, match.index + match[0].length, fold(match[0])]);
  if (clusters.length === 1) {
    const [start, end, form] = clusters[0];
    yield { start: begin + start, end: begin + end, term: form, extras: [] };
    return;
  }
  for (let place = 1; place < clusters.length; place += 1) {
    const [[start, , first], [, end, second]] = [clusters[place - 1], clusters[place]];
    yield { start: begin + start, end: begin + end, term: first + second, extras: [] };
  }
  for (const [start, end, form] of clusters) yield { start: begin + start, end: begin + end, term: "", extras: [form] };
}

function listHumps(word) {
  if (word.length > LONGEST_WORD || !/^[A-Za-z0-9]+$/.test(word) || IS_PLAIN.test(word)) return [];
  const parts = word.match(HUMPS) ?? [];
  return parts.length > 1 ? parts.map((part) => stem(part.toLowerCase())) : [];
}

/** Yields a compound, and the compounds inside it: `b_c.py` and `b_c` of `a/b_c.py`. */
function* listWholes(whole) {
  yield whole;
  if (whole[0] === "v" && /^\p{Nd}/u.test(whole.slice(1))) yield whole.slice(1);
  const digits = whole.replaceAll(",", "");
  if (whole.includes(",") && /^\p{Nd}+$/u.test(digits)) yield digits;
  const segments = whole.split(STRONG_JOINT);
  for (const segment of segments.length > 1 ? segments : []) {
    if (!IS_ALNUM.test(segment) && HAS_LETTER.test(segment)) yield strip(segment, ".-+", ".-+");
  }
  if (!whole.includes(".")) return;
  for (const segment of segments) {
    for (const part of segment.split(".")) if (/[_-]/.test(part) && part !== whole) yield part;
  }
}

function* splitCompound(compound, begin) {
  let covered = 0;
  for (const part of compound.matchAll(WORDS)) {
    const [start, end] = [begin + part.index, begin + part.index + part[0].length];
    covered += part[0].length;
    yield { start, end, term: stem(cut(fold(part[0]), LONGEST_WORD)), extras: listHumps(part[0]) };
  }
  if (covered < compound.length && count(compound) <= LONGEST_WHOLE) {
    const extras = [...new Set(listWholes(fold(compound)))];
    yield { start: begin, end: begin + compound.length, term: "", extras };
  }
}

export function* findWords(piece) {
  for (const match of piece.matchAll(ANY)) {
    if (match.groups.dense) yield* splitDense(match[0], match.index);
    else yield* splitCompound(match[0], match.index);
  }
}

/** Returns the English terms of a piece of text without blanks, and its extra terms. */
export function analyse(piece) {
  const core = strip(piece, BEFORE, BEHIND);
  if (core.length <= LONGEST_WORD && IS_PLAIN.test(core)) return { terms: [stem(core.toLowerCase())], extras: [] };
  const words = [...findWords(piece)];
  return { terms: words.map((word) => word.term).filter(Boolean), extras: words.flatMap((word) => word.extras) };
}

export const isCompound = (term) => IS_JOINED.test(term);

// Queries

const QUOTES = /[\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02]/g;
const ASKED = new RegExp(
  `(?<minus>(?<![^${BLANK}])-)?"(?<phrase>[^"]*)"|` +
    `(?<without>(?<![^${BLANK}])-(?=[\\p{L}\\p{Nl}\\p{No}]))?(?<piece>[^${BLANK}"]+)`,
  "gv",
);

const toPhrase = (text) => splitPieces(text).flatMap((piece) => analyse(piece).terms);
const addTo = (weights, term, weight) => weights.set(term, (weights.get(term) ?? 0) + weight);

function findPrefix(piece) {
  if (!piece.endsWith("*")) return "";
  const prefix = cut(fold(strip(piece.slice(0, -1), "*-'([{", "*-'([{")), LONGEST_WHOLE);
  return HAS_LETTER.test(prefix) ? prefix : "";
}

/** Returns whether a piece is a stop word of any of these sets. `IT` and `WHO` in capitals are not. */
function isStopWord(piece, stopWords) {
  const word = strip(piece, BEHIND + BEFORE, BEHIND + BEFORE);
  if (count(word) > 1 && word === word.toUpperCase() && word !== word.toLowerCase()) return false;
  return stopWords.some((words) => words.has(word.toLowerCase()));
}

function listWritten(piece) {
  const { terms, extras } = analyse(piece);
  if (terms.length === 1 && !extras.length) return [[terms[0], strip(piece, BEFORE, BEHIND)]];
  return [...findWords(piece)].filter((word) => word.term).map((word) => [word.term, piece.slice(word.start, word.end)]);
}

function addWeights(weights, pieces) {
  for (const { terms, extras } of pieces.map(analyse)) {
    for (const term of terms) addTo(weights, term, 1);
    for (const term of extras) addTo(weights, term, SECONDARY);
  }
}

function addPhrase(phrases, text) {
  const phrase = toPhrase(text);
  const key = phrase.join(" ");
  if (phrase.length && !phrases.has(key)) phrases.set(key, phrase);
}

/** Returns what a query asks for. `english`: the English stop words. */
export function parseQuery(query, english) {
  const [beside, prefixes, phrases, excluded, written] = [[], new Set(), new Map(), new Map(), new Map()];
  for (const { groups } of query.replace(QUOTES, '"').matchAll(ASKED)) {
    const text = groups.phrase ?? groups.piece;
    const prefix = groups.phrase === undefined ? findPrefix(text) : "";
    if (groups.minus || groups.without) addPhrase(excluded, text);
    else if (groups.phrase !== undefined) addPhrase(phrases, text);
    else if (prefix) prefixes.add(prefix);
    else beside.push(text);
    for (const [term, word] of splitPieces(text).flatMap(listWritten)) {
      if (!written.has(term)) written.set(term, new Set());
      written.get(term).add(word);
    }
  }
  const terms = new Map();
  for (const phrase of phrases.values()) for (const term of phrase) addTo(terms, term, 1);
  const telling = beside.filter((piece) => !isStopWord(piece, [english]));
  const isTelling = Boolean(telling.length || terms.size || prefixes.size);
  addWeights(terms, isTelling ? telling : beside);
  const counted = new Map();
  if (isTelling) addWeights(counted, beside.filter((piece) => isStopWord(piece, [english])));
  const stopWords = new Map();
  for (const [term, weight] of counted) if (!terms.has(term)) stopWords.set(term, SECONDARY * weight);
  const besideWords = beside.reduce((sum, piece) => sum + toPhrase(piece).length, 0);
  return {
    terms,
    prefixes: [...prefixes],
    phrases: [...phrases.values()],
    excluded: [...excluded.values()],
    isStrict: !phrases.size || besideWords <= WORDS_BESIDE_STRICT_PHRASES,
    isTelling,
    stopWords,
    written: new Map(Array.from(written, ([term, words]) => [term, [...words]])),
    variants: new Map(),
  };
}

/**
 * Returns the query in the languages of the KB: with their terms for its words, and without their stop words.
 * `stemIn`: returns the terms of a word in a language.
 */
export function adaptQuery(query, languages, stopWords, stemIn) {
  if (!languages.some((code) => code !== "en")) return query;
  const variants = new Map();
  for (const [term, words] of query.written) {
    const stems = words.flatMap((word) => languages.flatMap((code) => (code === "en" ? [stem(fold(word))] : stemIn(word, code))));
    variants.set(term, [...new Set(stems)].sort());
  }
  const quoted = new Set(query.phrases.flat());
  const lists = languages.map((code) => stopWords[code]);
  const [terms, others] = [new Map(), new Map(query.stopWords)];
  for (const [term, weight] of query.terms) {
    const words = query.written.get(term) ?? [];
    const isStop = words.length && !quoted.has(term) && words.every((word) => isStopWord(word, lists));
    if (isStop) others.set(term, SECONDARY * weight);
    else terms.set(term, weight);
  }
  if (!terms.size && !query.prefixes.length) return { ...query, variants, isTelling: false };
  return { ...query, terms, stopWords: others, variants };
}

export const holdsPhrase = (text, phrase) => ` ${toPhrase(text).join(" ")} `.includes(` ${phrase.join(" ")} `);
export const countAlnum = (text) => [...text].filter((letter) => HAS_LETTER.test(letter)).length;
