"""Confidence: the probability that a quoted block answers a question, from a small model.

`benchmarks/answers.py --fit` prints the coefficients of a logistic regression. It uses documentation questions with
known answers and judged sets. docs/performance-answers.md has the reliability curve.
"""

import math
from collections.abc import Mapping

ANSWER_FROM = 0.5
"""Minimum confidence of an answer. Below it, passages are shown without a claim."""
NOTHING_BELOW = 0.15
"""Minimum confidence to show passages."""
_SURE = 0.79
"""Maximum confidence of a block that lacks the content words or the form of an answer."""
_MOST = 0.95
"""Maximum confidence: words and numbers alone are never certain."""
_SURE_COVERAGE = 0.6
_SURE_FORM = 0.5

COEFFICIENTS: Mapping[str, float] = {
    "constant": -6.61,
    "known": 2.36,
    "meaning": 2.17,
    "form": 0.5,
    "share": 2.22,
    "lead": 0.89,
    "agreement": 0.57,
    "words": 1.6,
    "brief": 0.5,
}
"""The weight of each feature of the best block in the log-odds. Each feature is from 0 to 1.

known: the share of the question's content words that its passage holds, where rare words count much more. meaning: how
near the block is in meaning. form: how far the block has the form of an answer. share: the likelihood of the four best
blocks, as a share of that of all measured blocks. agreement: the lower of its passage's two scores, by words and by
meaning. words: the number of the question's content words that its passage holds; a definition of the asked term counts
as many. brief: 0 for a question that asks how to do something, because one block seldom has the full answer; 1 for
others.
"""


def estimate_confidence(features: Mapping[str, float], coefficients: Mapping[str, float] = COEFFICIENTS) -> float:
    """Return the probability that the block answers the question, rounded to hundredths.

    `features`: the features of `COEFFICIENTS`, and `coverage`: the share of the question's content words in the block.
    """
    odds = sum(weight * features.get(name, 1.0) for name, weight in coefficients.items())
    is_earned = features["coverage"] >= _SURE_COVERAGE and features["form"] >= _SURE_FORM
    return round(min(1 / (1 + math.exp(-odds)), _MOST if is_earned else _SURE), 2)
