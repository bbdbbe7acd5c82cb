"""A site that answers in the browser: the data of a packaged index, the page, and a signed manifest.

Invariants
    Data files are named by their content and written before the manifest names them.
    The files of the replaced version stay, so that open pages keep working; those of the one before are removed.
    The page needs no server: every address in it is relative.
    Files that another program made are not replaced: a folder without a site may hold only files of other names.
"""

import functools
import hashlib
import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pair import files
from pair.kb.package_index import open_package
from pair.packages.package import PackageManifest
from pair.packages.rules import SIGNATURE_SUFFIX
from pair.packages.signing import SecretKey, sign_digest
from pair.settings import Settings

MANIFEST_NAME = "site.json"
_PAGE = Path(__file__).parent / "site_page"
_DATA = "data"
_FIRST_LIST = "documents.html"
_LISTED_ON_PAGE = 1000


def refuse_foreign_site(label: PackageManifest, destination: Path) -> None:
    """Raise E025 or E026 if the site cannot be written without a link or a file that pair did not make."""
    folder = destination / "site" / label.name
    with files.storage_errors():
        try:
            existing = {*files.list_folder(folder)}
        except FileNotFoundError:
            return
        if _read_manifest(folder / MANIFEST_NAME):
            return
        pages = _fill_pages(label)
        made = {name for name in existing & pages.keys() if files.read_file(folder / name) == pages[name]}
        was_interrupted = made == pages.keys()
        names = {*pages, MANIFEST_NAME} if was_interrupted else {*pages, MANIFEST_NAME, _FIRST_LIST}
        for name in sorted(existing & names - made):
            raise files.foreign_file(folder / name)


def publish_site(
    package: Path, label: PackageManifest, destination: Path, key: SecretKey | None, settings: Settings
) -> str:
    """Write the site of a package with an index, and return its folder. Raises E009, E010, E014, E207, E305."""
    folder = destination / "site" / label.name
    with files.storage_errors():
        files.make_folder(folder / _DATA)
        with open_package(package, settings) as kb:
            data = kb.backup.write_site(functools.partial(_put, folder / _DATA))
        about = {
            "name": label.name,
            "version": label.version,
            "description": label.description,
            "content": f"sha256:{label.content_checksum}",
            "key": key.public.line if key is not None else "",
            **data.description,
        }
        before = _read_manifest(folder / MANIFEST_NAME)
        replaced = _list_data(before) if before.get("start") != about["start"] else before.get("previous", [])
        about["previous"] = sorted({*replaced} - {*_list_data(about)})
        for name, page in _fill_pages(label).items():
            files.write_atomically(folder / name, page)
        for name, text in _list_documents(label.name, data.documents):
            files.write_atomically(folder / name, text.encode())
        _write_manifest(folder, about, key)
        kept = {*_list_data(about), *about["previous"]}
        for name in {*before.get("previous", []), *_list_data(before)} - kept:
            files.unlink(folder / _DATA / Path(name).name, missing_ok=True)
    return str(folder)


def _put(folder: Path, name: str, content: bytes) -> None:
    if not (folder / name).is_file():  # it is named by its content
        files.write_atomically(folder / name, content)


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of the version that is replaced; empty if there is none that can be read."""
    try:
        value = json.loads(path.read_bytes())
        return value if isinstance(value, dict) and _list_data(value) else {}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


def _list_data(about: dict[str, Any]) -> list[str]:
    if "start" not in about or "files" not in about:
        return []
    return [about["start"]["name"], *(name for kind in about["files"].values() for name, _ in kind)]


def _write_manifest(folder: Path, about: dict[str, Any], key: SecretKey | None) -> None:
    path = folder / MANIFEST_NAME
    signature = path.with_name(path.name + SIGNATURE_SUFFIX)
    content = json.dumps(about, ensure_ascii=False, sort_keys=True).encode() + b"\n"
    if key is None:
        files.write_atomically(path, content)
        files.unlink(signature, missing_ok=True)
        return
    comment = f"site:{about['name']}\tversion:{about['version']}"
    signed = sign_digest(hashlib.blake2b(content).digest(), key, comment)
    files.write_together((signature, signed), (path, content))


def _fill_pages(label: PackageManifest) -> dict[str, bytes]:
    """Return the files of the page by name, with the name and the description of the package in their places."""
    pages = {}
    for path in sorted(_PAGE.iterdir()):
        text = path.read_text(encoding="utf-8")
        if path.name in {"index.html", "app.webmanifest"}:
            for name, value in (("name", label.name), ("description", label.description)):
                filled = json.dumps(value)[1:-1] if path.suffix == ".webmanifest" else html.escape(value)
                text = text.replace(f"[[{name}]]", filled)
        pages[path.name] = text.encode()
    return pages


def _list_documents(name: str, documents: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """Yield pages with a plain list of the documents, for readers without JavaScript."""
    pages = max(1, -(-len(documents) // _LISTED_ON_PAGE))
    names = [_FIRST_LIST, *(f"documents-{number}.html" for number in range(2, pages + 1))]
    for number, page in enumerate(names):
        own = documents[number * _LISTED_ON_PAGE : (number + 1) * _LISTED_ON_PAGE]
        items = "\n".join(map(_format_document, own))
        following = f'<p><a href="{names[number + 1]}">Next page</a></p>' if number + 1 < pages else ""
        title = html.escape(f"Documents of {name}")
        yield (
            page,
            f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'self'; base-uri 'none'">
<title>{title}</title>
<link rel="stylesheet" href="style.css">
</head>
<body>
<main>
<h1>{title}</h1>
<p><a href="./">Search</a>. {len(documents):,} documents; page {number + 1} of {pages}.</p>
<ol start="{number * _LISTED_ON_PAGE + 1}">
{items}
</ol>
{following}
</main>
</body>
</html>
""",
        )


def _format_document(document: tuple[str, str, str]) -> str:
    document_id, title, url = document
    label = html.escape(title or document_id)
    shown = f'<a href="{html.escape(url)}">{label}</a>' if url.startswith(("https://", "http://")) else label
    other = f" <small>{html.escape(document_id)}</small>" if title and title != document_id else ""
    return f"<li>{shown}{other}</li>"
