// The terms of the KB: their rows, read by unit; and the list of all words, read when a query needs it.

import { inflate, NumberReader } from "./bytes.js";
import { fold } from "./tokenizer.js";

const decoder = new TextDecoder();
const NOTHING = { rows: new Int32Array(0), counts: new Int32Array(0) };

/** Compares strings by code points, as the index is sorted. */
export function compareWords(left, right) {
  for (let place = 0; place < left.length && place < right.length; place += 1) {
    const [one, other] = [left.charCodeAt(place), right.charCodeAt(place)];
    if (one !== other) {
      const areSurrogates = [one, other].map((code) => code >= 0xd800 && code < 0xe000);
      return areSurrogates[0] === areSurrogates[1] ? one - other : areSurrogates[0] - areSurrogates[1];
    }
  }
  return left.length - right.length;
}

export class Terms {
  constructor(firsts, rows, readUnits) {
    this.firsts = firsts;
    this.rows = rows;
    this.readUnits = readUnits;
    this.units = new Map();
    this.lists = new Map();
  }

  #unitOf(term) {
    let [low, high] = [0, this.firsts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (compareWords(this.firsts[middle], term) <= 0) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** Reads the rows of these terms. Returns the terms that could not be read. */
  async load(terms) {
    const wanted = new Map();
    for (const term of terms) {
      const unit = this.#unitOf(term);
      if (!this.lists.has(term) && unit >= 0) wanted.set(term, unit);
    }
    const numbers = [...new Set(wanted.values())].filter((unit) => !this.units.has(unit));
    for (const [number, content] of await this.readUnits("terms", numbers)) {
      this.units.set(number, readTerms(await inflate(content)));
    }
    const failed = [];
    for (const [term, unit] of wanted) {
      const entry = this.units.get(unit)?.get(term);
      if (entry) this.lists.set(term, decodeRows(entry, this.rows));
      else if (this.units.has(unit)) this.lists.set(term, NOTHING);
      else failed.push(term);
    }
    return failed;
  }

  /** Returns rows and counts of loaded terms, added up as if they were one. */
  postings(terms) {
    const lists = terms.map((term) => this.lists.get(term) ?? NOTHING).filter((list) => list.rows.length);
    if (lists.length < 2) return lists[0] ?? NOTHING;
    const sums = new Map();
    for (const { rows, counts } of lists) rows.forEach((row, place) => sums.set(row, (sums.get(row) ?? 0) + counts[place]));
    const rows = Int32Array.from(sums.keys()).sort();
    return { rows, counts: rows.map((row) => sums.get(row)) };
  }
}

function readTerms(content) {
  const [reader, found] = [new NumberReader(content), new Map()];
  while (reader.place < content.length) {
    const term = decoder.decode(reader.take(reader.next()));
    const [count, kind, size] = [reader.next(), reader.next(), reader.next()];
    found.set(term, { count, kind, content: reader.take(size) });
  }
  return found;
}

function decodeRows({ count, kind, content }, every) {
  const [reader, rows, counts] = [new NumberReader(content), new Int32Array(count), new Int32Array(count)];
  if (kind === 1) {
    for (let row = 0, place = 0; row < every; row += 1) {
      const value = reader.next();
      if (value) {
        rows[place] = row;
        counts[place++] = value;
      }
    }
    return { rows, counts };
  }
  for (let place = 0, row = 0; place < count; place += 1) {
    row += reader.next();
    rows[place] = row;
    counts[place] = reader.next();
  }
  return { rows, counts };
}

/** All terms and written forms. */
export class WordList {
  constructor(content, endings) {
    const reader = new NumberReader(content);
    const split = (bytes) => (bytes.length ? decoder.decode(bytes).split("\n") : []);
    this.terms = split(reader.take(reader.next()));
    this.forms = split(reader.take(reader.next()));
    this.frequencies = new Map(this.terms.map((term) => [term, reader.next()]));
    this.termsOfForm = new Map();
    this.formTerms = this.forms.map((form) => {
      const term = this.terms[reader.next()];
      if (!this.termsOfForm.has(form)) this.termsOfForm.set(form, []);
      this.termsOfForm.get(form).push(term);
      return term;
    });
    this.endings = endings;
  }

  /** Returns the terms of a word in a language: those of the KB, or what the endings of other words suggest. */
  stemIn(word, language) {
    const [form, lower] = [fold(word), word.normalize("NFC").toLowerCase()];
    const { rules = {}, words = {} } = this.endings[language] ?? {};
    if (form !== lower) {
      // Accents may decide on the stem, and the rules do not know them.
      const known = this.termsOfForm.get(form) ?? (this.frequencies.has(form) ? [form] : null);
      if (known) return known;
    }
    return [Object.hasOwn(words, form) ? words[form] : applyEndings(form, rules)];
  }

  frequency(term) {
    return this.frequencies.get(term) ?? 0;
  }

  /** Returns the terms that begin with a prefix, and the terms of words that do. */
  expand(prefix) {
    const found = new Set(this.terms.filter((term) => term.startsWith(prefix)));
    this.forms.forEach((form, place) => form.startsWith(prefix) && found.add(this.formTerms[place]));
    return [...found].sort(compareWords);
  }
}

export function applyEndings(form, endings) {
  if (!/^\p{L}+$/u.test(form)) return form;
  for (let size = Math.min(6, form.length); size >= 0; size -= 1) {
    const ending = form.slice(form.length - size);
    const rule = Object.hasOwn(endings, ending) ? endings[ending] : null;
    if (rule) return form.slice(0, form.length - rule[0]) + rule[1];
  }
  return form;
}
