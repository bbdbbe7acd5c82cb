"""The shape of the code: budgets, public names, and what importing pair may load."""

import ast
import functools
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pair

SOURCE = Path(pair.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
MAY_TAKE_MANY = {("kb.py", "search"), ("client/remote_kb.py", "search"), ("wiring/engine.py", "open_kb")}
MAY_CATCH_EVERYTHING = {
    "app/cli/commands.py",
    "app/http/front.py",
    "app/mcp/server.py",
    "librarians/dispatch.py",
    "sync/ticker.py",
    "wiring/librarians.py",
}
MAY_IMPORT_LATE = {
    "__init__.py",
    "app/cli/entry.py",
    "app/cli/session.py",
    "app/http/assistants.py",
    "app/render.py",
    "engine/database.py",
    "settings.py",
    "wiring/builds.py",
    "wiring/doctor.py",
    "wiring/embedders.py",
    "wiring/engine.py",
    "wiring/librarians.py",
    "wiring/packages.py",
    "wiring/processes.py",
    "wiring/ray_runner.py",
    "wiring/server.py",
    "wiring/sources.py",
    "wiring/sync.py",
}
HEAVY = {
    "duckdb",
    "httpx2",
    "httpcore2",
    "typer",
    "rich",
    "pydantic",
    "yaml",
    "filelock",
    "stamina",
    "asyncio",
    "cryptography",
    "ssl",
    "numpy",
    "tokenizers",
}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    # Python 3.11 gives up on a tree when garbage collection runs somebody's code in the middle of it.
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(tree_of(path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


every_file = pytest.mark.parametrize("path", FILES, ids=name_of)


@every_file
def test_a_file_is_short_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    assert ast.get_docstring(tree_of(path)), "a module begins with its responsibility"


@every_file
def test_functions_are_short_and_take_few_parameters(path: Path) -> None:
    for function in functions(path):
        assert (function.end_lineno or 0) - function.lineno < MAX_FUNCTION_LINES, function.name
        if name_of(path).startswith("app/cli/"):
            continue  # a command has as many parameters as options
        if (name_of(path), function.name) in MAY_TAKE_MANY:
            continue  # so have those that everybody calls
        given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        own = [argument for argument in given if argument.arg not in {"self", "cls"}]
        assert len(own) <= MAX_PARAMETERS, function.name


@every_file
def test_no_function_passes_on_unnamed_keywords(path: Path) -> None:
    assert [function.name for function in functions(path) if function.args.kwarg is not None] == []


@every_file
def test_inheritance_is_one_deep_but_for_errors(path: Path) -> None:
    for node in nodes(path):
        if isinstance(node, ast.ClassDef) and name_of(path) != "error_tree.py":
            assert len(node.bases) <= 1, node.name
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            assert bases <= {"Exception", "Protocol", "NamedTuple", "StrEnum"} or name_of(path).startswith("app/cli"), (
                node.name
            )


@every_file
def test_everything_is_caught_only_at_the_boundaries(path: Path) -> None:
    blind = [
        node.lineno
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id == "Exception"))
    ]
    assert blind == [] or name_of(path) in MAY_CATCH_EVERYTHING


@every_file
def test_imports_stand_at_the_top(path: Path) -> None:
    late = [
        statement.lineno
        for function in functions(path)
        for statement in ast.walk(function)
        if isinstance(statement, ast.Import | ast.ImportFrom)
    ]
    assert late == [] or name_of(path) in MAY_IMPORT_LATE


def test_the_public_names_are_these() -> None:
    classes = ["Citation", "Context", "Document", "Hit", "KbSource", "KnowledgeBase", "Librarian", "PairError"]
    classes += ["Response", "Settings", "SyncReport"]
    assert pair.__all__ == [*classes, "connect", "errors", "install", "open", "resolve_source"]
    assert all(getattr(pair, name) is not None for name in pair.__all__)
    with pytest.raises(AttributeError):
        _ = pair.no_such_name  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", ["import pair", "import pair.app.cli.entry as entry; entry.main(['--version'])"])
def test_importing_pair_and_asking_for_its_version_load_nothing_heavy(code: str) -> None:
    listing = f"{code}\nimport sys; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True)
    assert HEAVY & set(done.stdout.split()) == set()


def test_work_on_local_files_loads_no_network_code(tmp_path: Path) -> None:
    (tmp_path / "kb").mkdir()
    (tmp_path / "kb" / "page.md").write_text("page")
    code = (
        "import sys; from pair.app.cli.commands import run; run(['install', '--source', './kb']); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert {"httpx2", "stamina"} & set(done.stdout.split()) == set()
