// English stems, as the index has them: the Porter2 algorithm in the revision of Snowball 3.

const VOWELS = "aeiouy";
const isVowel = (letter) => VOWELS.includes(letter);
const REGION_STARTS = /^(?:gener|commun|arsen|past|univers|later|emerg|organ|inter)/;
const WHOLE = new Map(Object.entries({
  skis: "ski", skies: "sky", idly: "idl", gently: "gentl", singly: "singl", ugly: "ugli", early: "earli", only: "onli",
  sky: "sky", news: "news", howe: "howe", atlas: "atlas", cosmos: "cosmos", bias: "bias", andes: "andes",
}));
const KEEPS_ING = new Set(["inn", "out", "cann", "herr", "earr", "even"]);
const KEEPS_EED = new Set(["proc", "exc", "succ"]);
const AFTER_LI = "cdeghkmnrt";

const SECOND = [
  ["ational", "ate"], ["fulness", "ful"], ["iveness", "ive"], ["ization", "ize"], ["ousness", "ous"], ["biliti", "ble"],
  ["lessli", "less"], ["tional", "tion"], ["ation", "ate"], ["alism", "al"], ["aliti", "al"], ["entli", "ent"],
  ["fulli", "ful"], ["iviti", "ive"], ["ousli", "ous"], ["ogist", "og"], ["enci", "ence"], ["anci", "ance"],
  ["abli", "able"], ["izer", "ize"], ["ator", "ate"], ["alli", "al"], ["bli", "ble"], ["ogi", "og"], ["li", ""],
];
const THIRD = [
  ["ational", "ate"], ["tional", "tion"], ["alize", "al"], ["ative", ""], ["icate", "ic"], ["iciti", "ic"],
  ["ical", "ic"], ["ness", ""], ["ful", ""],
];
const FOURTH = [
  "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize", "ion", "al",
  "er", "ic",
];

/** Returns the place after the first consonant that follows a vowel. */
function findRegion(word, from) {
  for (let place = from + 1; place < word.length; place += 1) {
    if (isVowel(word[place - 1]) && !isVowel(word[place])) return place + 1;
  }
  return word.length;
}

function endsShort(word) {
  const [before, vowel, last] = [word.at(-3), word.at(-2), word.at(-1)];
  if (word.length === 2) return isVowel(word[0]) && !isVowel(word[1]);
  if (word.endsWith("past")) return true;
  return word.length > 2 && !isVowel(before) && isVowel(vowel) && !isVowel(last) && !"wxY".includes(last);
}

function removePlural(word) {
  if (word.endsWith("sses")) return word.slice(0, -2);
  if (/(?:ied|ies)$/.test(word)) return word.length > 4 ? word.slice(0, -2) : word.slice(0, -1);
  if (/(?:us|ss)$/.test(word)) return word;
  if (word.endsWith("s") && [...word.slice(0, -2)].some(isVowel)) return word.slice(0, -1);
  return word;
}

function removePast(word, first) {
  const eed = /eed(?:ly)?$/.exec(word);
  if (eed) {
    if (KEEPS_EED.has(word.slice(0, eed.index))) return word;
    return eed.index >= first ? `${word.slice(0, eed.index)}ee` : word;
  }
  const ending = /(?:ed|ing)(?:ly)?$/.exec(word);
  if (!ending) return word;
  const rest = word.slice(0, ending.index);
  if (ending[0] === "ing") {
    if (KEEPS_ING.has(rest)) return word;
    if (/^[^aeiouy][yY]$/.test(rest)) return `${rest[0]}ie`;
  }
  if (![...rest].some(isVowel)) return word;
  if (/(?:at|bl|iz)$/.test(rest)) return `${rest}e`;
  if (/(?:bb|dd|ff|gg|mm|nn|pp|rr|tt)$/.test(rest)) return /^[aeo]..$/.test(rest) ? rest : rest.slice(0, -1);
  return rest.length <= first && endsShort(rest) ? `${rest}e` : rest;
}

function replaceEnding(word, endings, first, second) {
  const found = endings.find(([ending]) => word.endsWith(ending));
  if (!found) return word;
  const [ending, other] = found;
  const rest = word.slice(0, word.length - ending.length);
  if (rest.length < first) return word;
  if (ending === "ogi" && !rest.endsWith("l")) return word;
  if (ending === "li" && !AFTER_LI.includes(rest.at(-1))) return word;
  if (ending === "ative" && rest.length < second) return word;
  return rest + other;
}

function removeSuffix(word, second) {
  const ending = FOURTH.find((each) => word.endsWith(each));
  if (ending === undefined) return word;
  const rest = word.slice(0, word.length - ending.length);
  if (rest.length < second || (ending === "ion" && !/[st]$/.test(rest))) return word;
  return rest;
}

function removeLast(word, first, second) {
  const rest = word.slice(0, -1);
  if (word.endsWith("e") && (rest.length >= second || (rest.length >= first && !endsShort(rest)))) return rest;
  if (word.endsWith("ll") && rest.length >= second) return rest;
  return word;
}

/** Returns the stem of a word of the letters a-z and apostrophes. */
export function stemEnglish(given) {
  if (WHOLE.has(given)) return WHOLE.get(given);
  if (given.length < 3) return given;
  let word = given.replace(/^'/, "").replace(/^y/, "Y").replace(/([aeiouy])y/g, "$1Y");
  const first = REGION_STARTS.exec(word)?.[0].length ?? findRegion(word, 0);
  const second = findRegion(word, first);
  word = removePlural(word.replace(/(?:'s'|'s|')$/, ""));
  word = removePast(word, first);
  word = word.replace(/^(.+[^aeiouy])[yY]$/, "$1i");
  word = replaceEnding(word, SECOND, first, second);
  word = replaceEnding(word, THIRD, first, second);
  word = removeSuffix(word, second);
  word = removeLast(word, first, second);
  return word.replaceAll("Y", "y");
}
