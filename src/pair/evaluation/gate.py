"""The comparison of measured figures with minimum values and an earlier report, so that a check can fail (pure)."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pair import errors

FIGURES = ("ndcg@10", "recall@10", "recall@100", "mrr@10")
_LEAST = re.compile(r"\s*([a-z]+@\d+)\s*=\s*([0-9.]+)\s*")
Figures = Mapping[str, Mapping[str, float]]
"""The figures of each mode, as in the JSON report of `pair eval`."""


def parse_least(given: Sequence[str]) -> dict[str, float]:
    """Parse least values such as `ndcg@10=0.7`. Raises E402."""
    least: dict[str, float] = {}
    for text in given:
        match = _LEAST.fullmatch(text.lower())
        try:
            value = float(match[2]) if match else -1.0
        except ValueError:
            value = -1.0
        if match is None or match[1] not in FIGURES or not 0.0 <= value <= 1.0:
            raise errors.command_line_invalid(
                f"Cannot use --min {text}: it must be FIGURE=NUMBER, with a number from 0 to 1.",
                hints=["pair eval questions/ --min ndcg@10=0.7", f"Figures: {', '.join(FIGURES)}"],
            )
        least[match[1]] = value
    return least


def parse_baseline(content: bytes, name: str) -> Figures:
    """Return the figures of an earlier report of `pair eval --json`. Raises E502."""
    try:
        modes = json.loads(content)["modes"]
        figures = {
            str(mode): {figure: float(values[figure]) for figure in FIGURES if figure in values}
            for mode, values in modes.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise errors.judged_set_invalid(name, "not a report of pair eval --json") from fault
    return figures


def find_failures(
    measured: Figures, least: Mapping[str, float], baseline: Figures, tolerance: float
) -> list[dict[str, Any]]:
    """Return the figures below a least value, or below the baseline by more than the tolerance.

    A mode that was not measured now is not compared.
    """
    failures: list[dict[str, Any]] = []
    for mode, values in measured.items():
        for figure, wanted in least.items():
            if values[figure] < wanted:
                failures.append(_describe(mode, figure, values[figure], wanted, "min"))
        for figure, before in baseline.get(mode, {}).items():
            if values[figure] < before - tolerance:
                failures.append(_describe(mode, figure, values[figure], before, "baseline"))
    return failures


def _describe(mode: str, figure: str, value: float, wanted: float, rule: str) -> dict[str, Any]:
    return {"mode": mode, "figure": figure, "value": value, "wanted": wanted, "rule": rule}


def format_gate(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a report."""
    if not failures:
        return ["", "Passed: no figure is below its minimum or the baseline."]
    lines = ["", f"Failed: {len(failures)} {'figure is' if len(failures) == 1 else 'figures are'} too low."]
    for failure in failures:
        against = "the minimum" if failure["rule"] == "min" else "the baseline"
        figure = f"  {failure['mode']:<9} {failure['figure']:<10} {failure['value']:.3f}"
        lines.append(f"{figure}, {against} is {failure['wanted']:.3f}")
    return lines
