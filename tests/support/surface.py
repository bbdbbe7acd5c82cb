"""The interfaces of pair as text: the output of every command, the descriptions of servers, and the files on disk.

`python -m support.surface` in `tests/` records it again into `tests/golden/surface`; `flow/test_surface.py` compares.
Names replace times, ids, hashes, sizes and paths, so that two runs give the same bytes.
"""

import inspect
import json
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pair
from pair import settings
from pair.errors import CODES, HTTP_STATUSES
from pair.kb.maintenance import KbBackup, KbGraph, KbMaintenance, KbVersions
from support.assistants import over_http
from support.command import Workplace, write_files
from support.served import Served

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "surface"
PAGES = {
    "releases.md": "# Releases\n\nReleases are made on Fridays at noon. Two people must agree.\n",
    "rollback.md": "# Rolling back\n\nA release is rolled back with `ship undo`. It takes about 4 minutes.\n",
    "guides/coffee.md": "# Coffee\n\nThe coffee machine by Acme Corp is cleaned by whoever is last to leave.\n",
}
QUESTION = "On which day are releases made?"
SCRIPT = """
install --source ../origin
install --source ../origin
install --source ../origin --dry-run
verify .pair/knowledge
info .pair/knowledge
package ../origin -o ../kb.zip --name handbook --version 1.0.0
verify ../kb.zip
info ../kb.zip
publish ../dist ../origin --version 1.0.0
lock
lock --check
sync --dry-run
sync
sync
status
search releases
search releases --mode keyword -k 1 --explain
search releases --filter nothing=1
search releases --mode nonsense
ask QUESTION
ask "How long does bread rise?"
ask QUESTION --librarian nobody
cite nonsense
librarians list
librarians check
ingest notes.jsonl
ingest notes.jsonl
docs list
docs get note-1
docs get nothing
docs delete note-1
versions
diff 1 3
rollback 1
compact --all
gc
cache sweep
export -o ../backup.jsonl
import ../backup.jsonl --kb copy
fsck
reembed --help
eval nothing
update
doctor
trust --show
keys add reader --scope read
keys list
install --source nonsense
install --offline
search
nonsense
""".strip().splitlines()

_STABLE = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00| UTC)?", "<time>"),
    (r"\b(pair_|pk_)[\w-]{16,}", "<key>"),
    (r"\b[0-9a-f]{12,64}\b", "<hex>"),
    (r"(?m)^\d0?% of .*\n", ""),  # progress appears only in slow runs
    (r"(?m)^(100% of [^,\n]*), .*/s$", r"\1"),
    (r"\b\d+(\.\d+)? ?(B|kB|MB|GB|bytes)\b", "<size>"),
    (r"\b\d+(\.\d+)? ?(ms|s|seconds)\b", "<duration>"),
    (r'("(?:took_ms|executionTimeMs|\w*bytes|seconds|mtime_ns|ctime_ns|inode|generation)": ?)[\d.e-]+', r"\1<number>"),
    (r"\bpid \d+|process \d+", "<process>"),
)


def stable(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "<folder>")
    for pattern, name in _STABLE:
        text = re.sub(pattern, name, text)
    return text


def commands(folder: Path) -> str:
    """Run every command on one project in order. Return the exit statuses and the output, as text and as JSON."""
    return "".join(_run(Workplace(folder), folder))


def _run(work: Workplace, folder: Path) -> Iterator[str]:
    write_files(folder / "origin", dict(PAGES))
    notes = [{"id": f"note-{number}", "text": f"Note {number} is about tea."} for number in (1, 2)]
    (work.folder / "notes.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    work.environment |= {"SOURCE_DATE_EPOCH": "1700000000", "COLUMNS": "100"}
    for line in SCRIPT:
        arguments = [QUESTION if word == "QUESTION" else word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)]
        for more in ([], ["--json"]):
            done = work.pair(*arguments, *more)
            shown = stable(f"stdout:\n{done.stdout}stderr:\n{done.stderr}", folder)
            yield f"$ pair {' '.join([line, *more])}\nexit {done.status}\n{shown}\n"


def formats(folder: Path) -> str:
    """Return the text files that `commands` left on disk, and the kinds of other files; omit machine-specific ones."""
    parts = []
    for path in sorted(folder.rglob("*")):
        is_local = {".pair-store", "cache", "cache-scratch", "home"} & {*path.relative_to(folder).parts}
        if path.is_file() and not is_local and re.fullmatch(r"\..*\.(?:lock|stored)", path.name) is None:
            parts.append(f"# {stable(path.relative_to(folder).as_posix(), folder)}\n{_content(path, folder)}")
    return "\n".join(sorted(set(parts)))


def _content(path: Path, folder: Path) -> str:
    data = path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return stable("\n".join(sorted(archive.namelist())), folder) + "\n"
    try:
        return stable(data.decode("utf-8"), folder)
    except UnicodeDecodeError:
        return f"<binary beginning with {data[:4]!r}>\n"


def servers(folder: Path) -> tuple[str, str]:
    """Return the descriptions of a server: OpenAPI, and the tools for assistants."""
    with Served(folder) as server:
        description = server.get("/openapi.json").json()
        tools = over_http(server.url, lambda client: client.list_tools())
    listed = [tool.model_dump(mode="json", exclude_none=True) for tool in tools.tools]
    return _json(description), _json(sorted(listed, key=lambda tool: tool["name"]))


def error_catalogue() -> str:
    return _json(
        {
            code: {
                "class": kind.__name__,
                "exit": kind.exit_status,
                "http": HTTP_STATUSES.get(code, kind.http_status),
                "recoverable": kind.retryable,
            }
            for code, (kind, _) in CODES.items()
        }
    )


def settings_keys() -> str:
    return "".join(
        f"{section}.{name} = {value!r}\n"
        for section, kind in settings.SECTIONS.items()
        for name, value in sorted(vars(kind()).items() if hasattr(kind(), "__dict__") else [])
    )


def python_names() -> str:
    lines = []
    for name in pair.__all__:
        value = getattr(pair, name)
        lines.append(f"{name}{_signature(value)}")
        if inspect.isclass(value):
            members = sorted(member for member in dir(value) if not member.startswith("_"))
            lines += [f"  {name}.{member}{_signature(inspect.getattr_static(value, member))}" for member in members]
    parts = {"versions": KbVersions, "maintenance": KbMaintenance, "backup": KbBackup, "graph": KbGraph}
    for part, kind in parts.items():
        for member, value in sorted(vars(kind).items()):
            if not member.startswith("_"):
                lines.append(f"KnowledgeBase.{part}.{member}{_signature(value)}")
    return "\n".join(lines) + "\n"


def _signature(value: Any) -> str:
    function = value.__get__(None, object) if isinstance(value, staticmethod | classmethod) else value
    try:
        parameters = inspect.signature(function).parameters if callable(function) else None
    except (TypeError, ValueError):
        return ""
    if parameters is None:
        return ""
    # Omit types, whose names are not public, and defaults, which may be functions.
    names = [name + ("" if parameter.default is parameter.empty else "=") for name, parameter in parameters.items()]
    keywords = [parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values()]
    if any(keywords):
        names.insert(keywords.index(True), "*")
    return f"({', '.join(names)})"


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def record(folder: Path) -> dict[str, str]:
    """Return all parts of the surface by the name of their golden file."""
    (folder / "work").mkdir()
    told = {"commands.txt": commands(folder / "work"), "formats.txt": formats(folder / "work")}
    told["openapi.json"], told["mcp-tools.json"] = servers(folder / "server")
    simple: dict[str, Callable[[], str]] = {
        "errors.json": error_catalogue,
        "settings.txt": settings_keys,
        "python.txt": python_names,
    }
    return told | {name: make() for name, make in simple.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for file_name, content in record(Path(temporary)).items():
            (GOLDEN / file_name).write_text(content, encoding="utf-8")
