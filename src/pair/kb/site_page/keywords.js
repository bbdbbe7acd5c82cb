// BM25 over all rows, with the statistics of the whole KB.
//
// score(row) = sum over terms: w · idf · f · (k1 + 1) / (f + k1 · (1 - b + b · length / average length))

import { findNeighbours } from "./spelling.js";
import { fold, holdsPhrase, isCompound, SECONDARY } from "./tokenizer.js";
import { compareWords } from "./vocabulary.js";

const K1 = 1.2;
const B = 0.75;
const MOST_CORRECTIONS = 3;
const MOST_SUBSTITUTED = 32;
const LEAST_PART = 4;
const LEAST_COMPOUND = 9;
const COMPOUNDING = ["da", "de", "et", "fi", "hu", "nl", "no", "sv"];
const LINKS = ["", "s", "n", "es", "en", "e"];
const MOST_CHECKED = 300;
const round = Math.fround;

/** Returns what BM25 divides by, for each row. */
export function computeNorms(lengths, words) {
  const average = Math.max(words / Math.max(lengths.length, 1), 1e-9);
  const [fixed, factor] = [round(K1 * (1 - B)), round((K1 * B) / average)];
  return Float32Array.from(lengths, (length) => fixed + round(factor * length));
}

export class KeywordSearch {
  /** `site`: its terms, words, norms, languages and texts. Call `prepare` first. */
  constructor(query, site) {
    this.query = query;
    this.site = site;
    this.corrected = new Map();
    this.failed = [];
  }

  #vary(term) {
    return this.query.variants.get(term) ?? [term];
  }

  #count(terms) {
    return this.site.terms.postings(terms).rows.length;
  }

  #weigh(holding) {
    return Math.log(1 + (this.site.rows - holding + 0.5) / (holding + 0.5));
  }

  /** Reads the rows of all terms, and weighs the terms. */
  async prepare() {
    const { query, site } = this;
    const groups = new Map();
    for (const term of [...query.terms.keys(), ...query.stopWords.keys()]) groups.set(term, this.#vary(term));
    for (const prefix of query.prefixes) groups.set(`${prefix}*`, site.words ? site.words.expand(prefix) : [prefix]);
    const excluded = query.excluded.flat().flatMap((term) => this.#vary(term));
    this.failed.push(...(await site.terms.load([...[...groups.values()].flat(), ...excluded])));
    const holding = new Map(Array.from(groups, ([name, terms]) => [name, this.#count(terms)]));
    this.weights = new Map();
    for (const [name] of groups) {
      if (!query.stopWords.has(name)) this.weights.set(name, (query.terms.get(name) ?? 1) * this.#weigh(holding.get(name)));
    }
    const counted = [...this.weights].filter(([name]) => holding.get(name) || !isCompound(name));
    this.ideal = (K1 + 1) * counted.reduce((sum, [, weight]) => sum + weight, 0);
    const asked = Array.from(this.weights, ([name, weight]) => ({ terms: groups.get(name), weight, isStopWord: false }));
    for (const [term, words] of query.written) {
      if (query.terms.has(term) && query.terms.size <= MOST_SUBSTITUTED) {
        asked.push(...(await this.#substitute(words[0], holding.get(term))));
      }
    }
    this.mayHoldAny = asked.some((each) => this.#count(each.terms) > 0);
    for (const [name, weight] of query.stopWords) {
      asked.push({ terms: groups.get(name), weight: weight * this.#weigh(holding.get(name)), isStopWord: true });
    }
    const firstDifference = (left, right) => left.map((term, place) => compareWords(term, right[place] ?? "")).find(Boolean);
    this.asked = asked.sort(
      (left, right) =>
        left.isStopWord - right.isStopWord || right.weight - left.weight || (firstDifference(left.terms, right.terms) ?? 0),
    );
    await this.#findPhrases();
  }

  async #weighSubstitute(terms) {
    this.failed.push(...(await this.site.terms.load(terms)));
    return { terms, weight: SECONDARY * this.#weigh(this.#count(terms)), isStopWord: false };
  }

  async #substitute(word, holding) {
    const { words, languages } = this.site;
    if (!words) return [];
    const compounding = COMPOUNDING.filter((code) => languages.includes(code));
    if (word.length >= LEAST_COMPOUND && /^\p{L}+$/u.test(word) && compounding.length) {
      const parts = this.#split(word, compounding);
      if (parts) return Promise.all(parts.map((part) => this.#weighSubstitute([part])));
    }
    return holding ? [] : this.#correct(word);
  }

  #split(word, languages) {
    const splits = [];
    for (const language of languages) {
      for (let place = LEAST_PART; place <= word.length - LEAST_PART; place += 1) {
        const [second] = this.site.words.stemIn(word.slice(place), language);
        for (const link of LINKS) {
          const first = word.slice(0, place - link.length);
          if (!word.slice(0, place).endsWith(link) || first.length < LEAST_PART) continue;
          splits.push([-Math.min(place, word.length - place), [this.site.words.stemIn(first, language)[0], second]]);
        }
      }
    }
    splits.sort((left, right) => left[0] - right[0]);
    return splits.map(([, parts]) => parts).find((parts) => parts.every((part) => this.site.words.frequency(part)));
  }

  async #correct(word) {
    const { words } = this.site;
    const near = findNeighbours(fold(word), words)
      .map((each) => ({ ...each, frequency: words.frequency(each.term) }))
      .filter((each) => each.frequency)
      .sort(
        (left, right) =>
          left.edits - right.edits || right.frequency - left.frequency ||
          compareWords(left.label, right.label) || compareWords(left.term, right.term),
      );
    const chosen = near.filter((each) => each.edits === near[0].edits).slice(0, MOST_CORRECTIONS);
    if (!chosen.length) return [];
    this.corrected.set(word, [...new Set(chosen.map((each) => each.label))].join(", "));
    return [await this.#weighSubstitute([...new Set(chosen.map((each) => each.term))].sort(compareWords))];
  }

  /** Returns BM25 of all rows, and the highest BM25 that the terms of each row allow. */
  scoreAll() {
    const { norms, rows: every } = this.site;
    const [scores, held] = [new Float64Array(every), new Float64Array(every)];
    for (const { terms, weight, isStopWord } of this.asked) {
      const { rows, counts } = this.site.terms.postings(terms);
      const [factor, exact] = [round(weight * (K1 + 1)), weight * (K1 + 1)];
      for (let place = 0; place < rows.length; place += 1) {
        const row = rows[place];
        if (isStopWord && !(scores[row] > 0)) continue;
        scores[row] += round(factor * round(counts[place] / round(counts[place] + norms[row])));
        if (!isStopWord) held[row] += exact;
      }
    }
    this.#applyPhrases(scores);
    return { scores, held };
  }

  // Phrases, and what is excluded

  #rowsWith(phrase) {
    const lists = [...new Set(phrase)].map((term) => new Set(this.site.terms.postings(this.#vary(term)).rows));
    return lists.reduce((left, right) => new Set([...left].filter((row) => right.has(row))));
  }

  async #findPhrases() {
    this.holding = new Map();
    for (const phrase of [...this.query.phrases, ...this.query.excluded]) {
      const rows = [...this.#rowsWith(phrase)];
      if (phrase.length === 1) {
        this.holding.set(phrase, new Set(rows));
        continue;
      }
      // Texts are read to see whether the words follow each other.
      const checked = rows.slice(0, MOST_CHECKED);
      const texts = await this.site.texts.load(checked);
      const holds = (row) => [row.text, row.title].some((text) => holdsPhrase(text, phrase));
      this.holding.set(phrase, new Set(checked.filter((row) => texts.has(row) && holds(texts.get(row)))));
    }
  }

  #applyPhrases(scores) {
    const { phrases, excluded, isStrict } = this.query;
    if (!phrases.length && !excluded.length) return;
    for (let row = 0; row < scores.length; row += 1) {
      if (excluded.some((phrase) => this.holding.get(phrase).has(row))) scores[row] = Number.NEGATIVE_INFINITY;
      for (const phrase of phrases) {
        const holds = this.holding.get(phrase).has(row);
        if (isStrict && !holds) scores[row] = Number.NEGATIVE_INFINITY;
        else if (!isStrict && holds && scores[row] > 0) {
          scores[row] += [...new Set(phrase)].reduce((sum, term) => sum + this.weights.get(term), 0);
        }
      }
    }
  }
}
