// Search a site: retrieve, rank, make passages.

import { inflate, NumberReader } from "./bytes.js";
import { Embedder } from "./embedder.js";
import { computeNorms, KeywordSearch } from "./keywords.js";
import { buildPassages } from "./passages.js";
import { LEAST, LEAST_WITHOUT_WORDS, makeScale, rank } from "./ranking.js";
import { Source } from "./source.js";
import { allowEdits } from "./spelling.js";
import { Texts } from "./texts.js";
import { adaptQuery, fold, parseQuery } from "./tokenizer.js";
import { findNearest, Vectors } from "./vectors.js";
import { Terms, WordList } from "./vocabulary.js";

const NEAR_ROWS = 200;
const KEYWORD_ROWS = 100;
const MORE_ROWS = 4;
const MOST_ROWS = 4000;
const MOST_WORDS_BYTES = 1_000_000;

const readJson = async (content) => JSON.parse(new TextDecoder().decode(await inflate(content)));

export class Site {
  /** Opens a site: reads its manifest and nothing else. `options`: those of a source, and `key`, the key to trust. */
  static async open(base, { key = "", ...options } = {}) {
    const site = new Site();
    site.source = new Source(base, options);
    site.about = await site.source.open(key);
    site.rows = site.about.rows;
    site.languages = site.about.languages;
    site.words = null;
    return site;
  }

  /** Reads what every query needs. */
  load() {
    this.loading ??= this.#load().catch((fault) => {
      this.loading = undefined;
      throw fault;
    });
    return this.loading;
  }

  async #load() {
    const sections = await this.source.readStart();
    const index = await readJson(sections.index);
    this.source.setIndex(index);
    const readUnits = this.source.readUnits.bind(this.source);
    this.stopWords = Object.fromEntries(Object.entries(index.stop_words).map(([code, words]) => [code, new Set(words)]));
    this.endings = index.endings;
    this.terms = new Terms(index.terms.first, this.rows, readUnits);
    this.texts = new Texts(index.texts.first, readUnits);
    const reader = new NumberReader(await inflate(sections.lengths));
    const lengths = Array.from({ length: this.rows }, () => reader.next());
    this.norms = computeNorms(lengths, this.about.words);
    if (!index.vectors) return;
    const { dimension } = index.vectors;
    const tokens = await readJson(sections.tokens);
    this.embedder = new Embedder(tokens, index.tokens, sections.token_vectors.slice(), dimension, readUnits);
    this.vectors = new Vectors(index.vectors, sections.vectors.slice(), this.rows);
  }

  async #loadWords() {
    if (this.words) return;
    const content = (await this.source.readUnits("words", [0])).get(0);
    if (content) this.words = new WordList(await inflate(content), this.endings);
  }

  /** Returns the words of a query in the languages of the KB. */
  async analyse(text) {
    await this.load();
    const query = parseQuery(text, this.stopWords.en);
    const isForeign = this.languages.some((code) => code !== "en");
    if (isForeign || query.prefixes.length) await this.#loadWords();
    if (this.words === null && (await this.#hasUnknown(query))) await this.#loadWords();
    return adaptQuery(query, this.languages, this.stopWords, (word, code) => this.words?.stemIn(word, code) ?? [fold(word)]);
  }

  /** Returns whether a word occurs nowhere, and may be misspelled. */
  async #hasUnknown(query) {
    const files = this.about.files.words;
    if (files.reduce((sum, [, size]) => sum + size, 0) > MOST_WORDS_BYTES) return false;
    const words = [...query.written].filter(([term, words]) => query.terms.has(term) && allowEdits(fold(words[0])));
    if (!words.length) return false;
    // All terms of the query, because they are read anyway.
    await this.terms.load([...query.terms.keys(), ...query.stopWords.keys()]);
    return words.some(([term]) => !this.terms.postings([term]).rows.length);
  }

  /** Returns the query as words and vector, with the distances of all rows. */
  async #read(text) {
    const [words, embedded] = await Promise.all([
      this.analyse(text),
      this.embedder ? this.embedder.embed(text) : { vector: null, fit: 0, missing: 0 },
    ]);
    const hasWords = words.terms.size || words.prefixes.length || words.excluded.length;
    const keywords = hasWords ? new KeywordSearch(words, this) : null;
    await keywords?.prepare();
    const distances = embedded.vector ? this.vectors.distances(embedded.vector) : null;
    return { words, keywords, distances, weight: this.about.vector_weight * embedded.fit, missing: embedded.missing };
  }

  /** Returns passages for a query, best first, and why there are none. */
  async search(text, { limit = 5 } = {}) {
    await this.load();
    const asked = await this.#read(text);
    const every = asked.keywords ? asked.keywords.scoreAll() : { scores: new Float64Array(this.rows), held: new Float64Array(this.rows) };
    let [wanted, firstNear, hits, ranked] = [limit, null, [], []];
    for (;;) {
      const { candidates, near, isComplete } = this.#retrieve(asked, every, wanted);
      firstNear ??= near;
      const scale = makeScale(asked.weight, candidates.map((each) => each.keyword), firstNear);
      ranked = rank(candidates, scale, firstNear, asked.keywords);
      hits = await buildPassages(ranked, limit, this.texts);
      if (hits.length >= limit || ranked.length < limit || isComplete || ranked.length >= MOST_ROWS) break;
      wanted = MORE_ROWS * ranked.length;
    }
    const isRelevant = !hits.length || this.#isRelevant(asked, ranked);
    return {
      hits: isRelevant ? hits : [],
      nearMisses: isRelevant ? 0 : hits.length,
      corrected: asked.keywords?.corrected ?? new Map(),
      weights: asked.keywords?.weights ?? new Map(),
      terms: asked.keywords?.asked.filter((each) => !each.isStopWord).flatMap((each) => each.terms) ?? [],
      isPartial: Boolean(asked.keywords?.failed.length) || this.source.missing.size > 0,
      isOffline: asked.missing > 0,
    };
  }

  #retrieve({ words, distances }, { scores, held }, limit) {
    const [nearLimit, keywordLimit] = [Math.max(NEAR_ROWS, 2 * limit), Math.max(KEYWORD_ROWS, 2 * limit)];
    const { rows: nearRows, near } = distances ? findNearest(distances, nearLimit) : { rows: [], near: new Float32Array(0) };
    let found = [];
    for (let row = 0; row < scores.length; row += 1) if (scores[row] > 0) found.push(row);
    if (found.length > keywordLimit) {
      const least = Float64Array.from(found, (row) => scores[row]).sort()[found.length - keywordLimit];
      found = found.filter((row) => scores[row] >= least);
    }
    const chosen = [...new Set([...nearRows, ...found])].filter((row) => scores[row] > Number.NEGATIVE_INFINITY);
    const toCandidate = (row) => ({ row, keyword: scores[row], held: held[row], distance: distances ? distances[row] : Number.NaN });
    const isStrict = words.phrases.length > 0 && words.isStrict;
    const hasAllNear = !distances || nearRows.length < nearLimit || isStrict;
    return {
      candidates: chosen.map(toCandidate),
      near: near.subarray(0, NEAR_ROWS),
      isComplete: hasAllNear && found.length < keywordLimit,
    };
  }

  #isRelevant({ words, keywords }, ranked) {
    const best = ranked.reduce((most, each) => Math.max(most, each.score), 0);
    if (best >= LEAST_WITHOUT_WORDS) return true;
    if (!words.terms.size && !words.prefixes.length) return words.excluded.length > 0;
    return Boolean(keywords?.mayHoldAny) && best >= LEAST;
  }
}
