"""A process that writes for a long time keeps open what the KB is made of, and not what it was made of."""

import os
from pathlib import Path

import pytest

from pair import wiring
from pair.settings import Settings
from pair.values import Document

WRITES = 40


def test_files_that_stay_open_do_not_grow_with_the_number_of_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with wiring.open_kb(store="memory:", settings=Settings()) as kb:
        opened = []
        for number in range(WRITES):
            kb.upsert([Document(f"d{number}", "text", vector=[1.0] * 384)])
            opened.append(len(os.listdir("/proc/self/fd")))
        stats = kb.stats()
    assert stats is not None
    assert stats.documents == WRITES
    assert opened[-1] - opened[0] < WRITES
