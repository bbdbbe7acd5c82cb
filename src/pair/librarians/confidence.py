"""How likely it is that passages answer a question: from scores, agreement and coverage to one number.

Not here
    How it was calibrated: docs/concepts/librarians.md, measured by benchmarks/answers.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LIKELY = 0.8
UNLIKELY = 0.5
NOTHING_RELEVANT = 0.2
"""Below this nothing is quoted as an answer."""

_CONSTANT = -4.25
_COVERAGE = 2.9
_MEANING = 3.0
_LEAD = 4.4
_AGREEMENT = 0.15


@dataclass(frozen=True, slots=True)
class Evidence:
    """Each from 0 to 1."""

    coverage: float
    """The share of the question's words, rare ones counting more, that the best passages hold together."""
    meaning: float
    """How near the best passage is to the question: the cosine of their vectors, 0 if it is below."""
    agreement: float
    """Whether words and meaning choose the same passage: the lower of its two scores among the candidates."""
    lead: float
    """By how much the best document is better than the next."""


def confidence_in(evidence: Evidence) -> float:
    """From 0 to 1, in hundredths: more would be a pretence."""
    # To be better than others, or the choice of both, says little where neither words nor meaning fit.
    basis = max(evidence.coverage, evidence.meaning)
    weighed = (
        _CONSTANT
        + _COVERAGE * evidence.coverage
        + _MEANING * evidence.meaning
        + _LEAD * evidence.lead * basis
        + _AGREEMENT * evidence.agreement * basis
    )
    return round(1 / (1 + math.exp(-weighed)), 2)


def in_words(confidence: float | None) -> str:
    if confidence is None:
        return "not known"
    levels: Sequence[tuple[float, str]] = (
        (LIKELY, "high"),
        (0.6, "fair"),
        (UNLIKELY, "moderate"),
        (NOTHING_RELEVANT, "low"),
    )
    return next((word for least, word in levels if confidence >= least), "very low")
