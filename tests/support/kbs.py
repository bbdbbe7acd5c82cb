"""Small KBs as folders and archives."""

import hashlib
import io
import random
import zipfile
from collections.abc import Mapping
from pathlib import Path

SMALL_KB: dict[str, str | bytes] = {
    "README.md": "# Handbook\n",
    "guides/deploy.md": "# Deploy\n\nOn Tuesdays.\n",
    "logo.png": b"\x89PNG\r\n\x00\xff",
}
SMALL_KB_BYTES = {name: text.encode() if isinstance(text, str) else text for name, text in SMALL_KB.items()}


def zip_of(files: Mapping[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return archive.getvalue()


def zip_of_size(size_bytes: int) -> bytes:
    """Return an incompressible archive of about this size."""
    return zip_of({"README.md": "# Large\n", "data.bin": random.Random(7).randbytes(size_bytes)}, zipfile.ZIP_STORED)


def many_files(count: int, *, version: str) -> dict[str, str | bytes]:
    """Return many pages in folders; each names its version."""
    return {f"part-{number % 10}/page-{number}.md": f"# Page {number}\n\n{version}\n" * 20 for number in range(count)}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_zip(path: Path, files: Mapping[str, str | bytes]) -> Path:
    path.write_bytes(zip_of(files))
    return path
