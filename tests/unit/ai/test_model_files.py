"""Files inside other packages: found without an import, and refused if they differ."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pair.ai.caching_embedder import BundledFile, open_mapped
from pair.errors import DataError

CONTENT = b"numbers"
FILE = BundledFile("carrier_of_numbers", "deep/numbers.bin", hashlib.sha256(CONTENT).hexdigest(), "numbers==1.0")


@pytest.fixture
def carried(tmp_path: Path) -> Iterator[Path]:
    """Return the file, in an installed package that must not be imported."""
    folder = tmp_path / FILE.package / "deep"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "numbers.bin").write_bytes(CONTENT)
    with pytest.MonkeyPatch.context() as steered:
        steered.syspath_prepend(str(tmp_path))
        yield folder / "numbers.bin"


def reason_of_refusal() -> str:
    with pytest.raises(DataError) as caught:
        open_mapped(FILE)
    assert (caught.value.code, caught.value.hints) == (
        "E305",
        ("Install it again: pip install --force-reinstall --no-deps 'numbers==1.0'",),
    )
    return str(caught.value.details["reason"])


def test_a_file_is_read_without_importing_its_package(carried: Path) -> None:
    assert open_mapped(FILE)[:] == CONTENT


def test_a_changed_file_is_refused(carried: Path) -> None:
    carried.write_bytes(b"numberz")
    assert reason_of_refusal() == "its SHA-256 is not the expected one"


@pytest.mark.parametrize("content", [None, b""])
def test_a_missing_or_empty_file_is_refused(carried: Path, content: bytes | None) -> None:
    carried.unlink()
    if content is not None:
        carried.write_bytes(content)
    assert reason_of_refusal() == "it cannot be read"


def test_a_missing_package_is_refused() -> None:
    assert reason_of_refusal() == "its package is not installed"
