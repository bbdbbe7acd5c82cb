// One score of keywords and vectors, and how probable it is that a row is relevant.
//
// score = (1 - w) · K / Kmax + w · V
// V     = max(0, (f² - d²) / (f² - n²)): d, the row's distance; n and f, the nearest and farthest of the near rows

const USUAL_ROWS = 12;
const UNKNOWN_ROWS = 2;
const STOP_WORDS_SHARE = 0.3;
const BY_WORDS_AND_MEANING = { base: -6.82, standing: 1.95, coverage: 4.13, nearness: 1.98, agreement: 2.39 };
const BY_WORDS = { base: -7.45, standing: 4.14, coverage: 4.64 };
const BY_MEANING = { base: -4.92, standing: 0.92, nearness: 9.23 };

/** A query by words and meaning has results if the best one is at least this probable. */
export const LEAST = 0.02;
/** The same for a query of whose words none occurs in the KB. */
export const LEAST_WITHOUT_WORDS = 0.25;

export function makeScale(weight, keyword, near) {
  const best = keyword.reduce((most, score) => Math.max(most, score), 0);
  if (!near.length) return { weight: 0, best, nearest: 0, farthest: 0 };
  return { weight: best > 0 ? weight : 1, best, nearest: near[0], farthest: near[near.length - 1] };
}

function scaleVector(scale, distance) {
  const span = scale.farthest ** 2 - scale.nearest ** 2;
  if (span <= 0) return distance <= scale.nearest ? 1 : 0;
  return Math.max((scale.farthest ** 2 - distance ** 2) / span, 0);
}

const toCosine = (distance) => 1 - distance ** 2 / 2;

function findUsual(near) {
  const cosines = Array.from(near.subarray(0, USUAL_ROWS), toCosine);
  return Math.max(cosines.reduce((sum, cosine) => sum + cosine, 0), 0) / (cosines.length + UNKNOWN_ROWS);
}

/**
 * Scores candidates, and estimates probabilities. `candidates`: rows with keyword, held and distance.
 * `near`: ascending distances of the near rows. `keywords`: null where no words count.
 */
export function rank(candidates, scale, near, keywords) {
  const coverageShare = keywords?.query.isTelling === false ? STOP_WORDS_SHARE : 1;
  const hasCoverage = scale.best > 0 && keywords !== null;
  const hasNearness = scale.weight > 0;
  const usual = hasNearness ? findUsual(near) : 0;
  for (const each of candidates) {
    each.keywordShare = scale.best > 0 ? Math.max(each.keyword, 0) / scale.best : 0;
    each.vectorShare = near.length ? scaleVector(scale, each.distance) : 0;
    each.raw = (1 - scale.weight) * each.keywordShare + scale.weight * each.vectorShare;
  }
  const best = candidates.reduce((most, each) => Math.max(most, each.raw), 0);
  const fit = hasCoverage && hasNearness ? BY_WORDS_AND_MEANING : hasCoverage ? BY_WORDS : BY_MEANING;
  for (const each of candidates) {
    let logit = fit.base + fit.standing * (best > 0 ? each.raw / best : 0);
    if (hasCoverage) logit += fit.coverage * Math.min(each.held / keywords.ideal, 1) * coverageShare;
    if (hasNearness) {
      logit += fit.nearness * Math.min(Math.max((toCosine(each.distance) - usual) / (1 - usual), 0), 1);
    }
    if (hasCoverage && hasNearness) logit += fit.agreement * Math.min(each.keywordShare, each.vectorShare);
    each.score = 1 / (1 + Math.exp(-logit));
  }
  // No candidate is more probable than one that ranks above it, and equal ones get the lowest of theirs.
  candidates.sort((left, right) => right.raw - left.raw || left.row - right.row);
  let least = 1;
  for (let first = 0; first < candidates.length; ) {
    let end = first;
    for (; end < candidates.length && candidates[end].raw === candidates[first].raw; end += 1) {
      least = Math.min(least, candidates[end].score);
    }
    for (; first < end; first += 1) candidates[first].score = least;
  }
  return candidates;
}
