"""The lifecycle state of a document."""

from typing import Any

import pytest

from pair.values import describe_lifecycle, read_lifecycle

TODAY = "2026-09-23"


@pytest.mark.parametrize(
    ("metadata", "state"),
    [
        ({}, {}),
        ({"status": "stable"}, {}),
        ({"status": "open"}, {}),
        ({"status": ["draft"]}, {}),
        ({"status": "draft"}, {"status": "draft"}),
        ({"stale_after": "2026-09-24"}, {}),
        ({"stale_after": "2026-09-23"}, {"stale_since": "2026-09-23"}),
        ({"stale_after": "2026-09-22T10:00:00"}, {"stale_since": "2026-09-22"}),
        ({"stale_after": "soon"}, {}),
        ({"stale_after": 20260101}, {}),
        ({"verified": {"by": "process:nightly"}}, {"verified_by": "machine"}),
        ({"verified": ["yes", {"by": 7}, {"at": "2026-01-01"}]}, {}),
        ({"verified": [{"by": "human:a", "at": "2026-01-01"}]}, {"verified_by": "person", "verified_at": "2026-01-01"}),
    ],
)
def test_a_state_is_read_from_well_formed_fields_only(metadata: dict[str, Any], state: dict[str, str]) -> None:
    assert read_lifecycle(metadata, TODAY) == state


def test_a_state_is_described_in_a_few_words() -> None:
    state = {"status": "draft", "stale_since": TODAY, "verified_by": "machine"}
    assert describe_lifecycle(state) == "draft, stale since 2026-09-23, verified by a machine"
