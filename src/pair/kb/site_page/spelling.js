// Words of the KB that are near to a misspelled word.

export const allowEdits = (word) => (word.length < 5 || !/^\p{L}+$/u.test(word) ? 0 : word.length < 8 ? 1 : 2);

/** Returns the edits between two words, up to a limit: replace, insert or drop a letter, or swap two. */
export function countEdits(word, other, limit) {
  if (Math.abs(word.length - other.length) > limit) return limit + 1;
  let [beforeLast, last] = [[], Array.from({ length: other.length + 1 }, (_, place) => place)];
  for (let row = 1; row <= word.length; row += 1) {
    const current = [row];
    let least = row;
    for (let column = 1; column <= other.length; column += 1) {
      const isSame = word[row - 1] === other[column - 1];
      let edits = Math.min(last[column] + 1, current[column - 1] + 1, last[column - 1] + (isSame ? 0 : 1));
      if (row > 1 && column > 1 && word[row - 1] === other[column - 2] && word[row - 2] === other[column - 1]) {
        edits = Math.min(edits, beforeLast[column - 2] + 1);
      }
      current.push(edits);
      least = Math.min(least, edits);
    }
    // A swap may reach back over one row.
    if (least > limit + 1) return limit + 1;
    [beforeLast, last] = [last, current];
  }
  return last[other.length];
}

function findLetters(word) {
  let letters = 0;
  for (let place = 0; place < word.length; place += 1) letters |= 1 << (word.charCodeAt(place) & 31);
  return letters;
}

function countBits(value) {
  let bits = value - ((value >>> 1) & 0x55555555);
  bits = (bits & 0x33333333) + ((bits >>> 2) & 0x33333333);
  return (((bits + (bits >>> 4)) & 0x0f0f0f0f) * 0x01010101) >>> 24;
}

/** Returns the near ones of these words by place. An edit changes at most one letter for another. */
function findNear(word, others, letters, most) {
  const [own, found] = [findLetters(word), []];
  for (let place = 0; place < others.length; place += 1) {
    const other = others[place];
    if (Math.abs(word.length - other.length) > most || countBits(letters[place] ^ own) > 2 * most) continue;
    const edits = countEdits(word, other, most);
    if (edits <= most) found.push([place, edits]);
  }
  return found;
}

/** Returns edits, word and term of each near word. */
export function findNeighbours(word, words) {
  const most = allowEdits(word);
  if (!most) return [];
  words.letters ??= [words.terms, words.forms].map((list) => Int32Array.from(list, findLetters));
  const near = (list, number) => findNear(word, list, words.letters[number], most);
  return [
    ...near(words.terms, 0).map(([place, edits]) => ({ edits, label: words.terms[place], term: words.terms[place] })),
    ...near(words.forms, 1).map(([place, edits]) => ({ edits, label: words.forms[place], term: words.formTerms[place] })),
  ];
}
