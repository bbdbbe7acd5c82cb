"""How likely it is that a quoted block answers a question: one small model of few features.

The coefficients are those of a logistic regression that `benchmarks/answers.py --fit` prints: over questions about
documentation whose answers are known, and over judged sets, never over the half that is set aside.
docs/performance-answers.md has the reliability curve.
"""

import math
from collections.abc import Mapping

ANSWER_FROM = 0.5
"""From here on a block is shown as the answer; below it, passages are shown without a claim."""
NOTHING_BELOW = 0.15
"""Below this, not even passages are shown."""
_SURE = 0.79
"""The most without the features that earn more: the block holds the telling words, and has the form of an answer."""
_MOST = 0.95
"""Words and numbers alone are never certain."""
_SURE_COVERAGE = 0.6
_SURE_FORM = 0.5

COEFFICIENTS: Mapping[str, float] = {
    "constant": -5.66,
    "coverage": 0.9,
    "around": 1.06,
    "known": 2.52,
    "meaning": 1.63,
    "lead": 0.93,
    "agreement": 1.44,
    "words": 1.47,
}
"""What each feature of the best block adds to the log-odds. Each feature is from 0 to 1.

coverage: the share of the question's telling words that the block holds. around: that only its headings and title hold.
known: the share that its passage holds, rare words counting much more. meaning: how near the block is in meaning.
lead: how much better it is than the best block of another document. agreement: the lower of its passage's two scores,
by words and by meaning. words: how many telling words the question has; a block that defines what is asked counts as
many.
"""


def estimate_confidence(features: Mapping[str, float]) -> float:
    """Return how likely the block is to answer the question, from 0 to 1, in hundredths.

    `features`: those of `COEFFICIENTS`, and `form`: how far the block has the form of an answer to such a question.
    """
    odds = sum(weight * features.get(name, 1.0) for name, weight in COEFFICIENTS.items())
    is_earned = features["coverage"] >= _SURE_COVERAGE and features["form"] >= _SURE_FORM
    return round(min(1 / (1 + math.exp(-odds)), _MOST if is_earned else _SURE), 2)
