"""Every error: its class, its statuses and its text."""

import ast
import functools
import inspect
import pickle
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pair import error_tree, errors
from pair.app.render import format_error
from pair.error_tree import ErrorTemplate
from pair.errors import CODES, PairError

TREE = """\
PairError                        exit 70   500   final
├── UsageError (ValueError)      exit 1    400   final
├── NotFoundError (LookupError)  exit 1    404   final
├── DownloadError                exit 2    502   retryable
├── StorageError                 exit 3    503   retryable
├── ConflictError                exit 4    409   retryable
├── DataError                    exit 5    500   final
├── ModelError                   exit 6    503   retryable
└── AccessError                  exit 1    403   final
"""
SOURCE = Path(inspect.getfile(errors)).parent
WITH_TEXTS = ("errors.py", "error_tree.py")


def drawn(kind: type[PairError], branch: str = "") -> Iterator[str]:
    bases = [base.__name__ for base in kind.__bases__ if base not in {Exception, PairError}]
    label = f"{branch}{kind.__name__}" + (f" ({', '.join(bases)})" if bases else "")
    status = f"exit {kind.exit_status:<4} {kind.http_status}   {'retryable' if kind.retryable else 'final'}"
    yield f"{label:<32} {status}"
    below = kind.__subclasses__()
    for child in below:
        yield from drawn(child, "└── " if child is below[-1] else "├── ")


@pytest.mark.rule("source-19")
def test_tree_of_errors_is_as_drawn():
    assert "\n".join(drawn(PairError)) + "\n" == TREE


@pytest.mark.rule("source-19")
def test_drawing_in_the_module_shows_the_same_tree():
    lines = re.findall(r"[├└]── (\w+) +(?:\((\w+)\))? .*exit (\d+) +(\d+)", error_tree.__doc__ or "")
    drawn_kinds = {name: (base, int(exit_status), int(http_status)) for name, base, exit_status, http_status in lines}
    assert drawn_kinds == {
        kind.__name__: (
            next((base.__name__ for base in kind.__bases__ if base is not PairError), ""),
            kind.exit_status,
            kind.http_status,
        )
        for kind in PairError.__subclasses__()
    }


def test_an_error_of_another_process_is_raised_unchanged():
    error = errors.stored_data_damaged("a key", "it is half there")
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is errors.DataError
    assert (str(arrived), vars(arrived)) == (str(error), vars(error))


# ── one place for each text ────────────────────────────────────────────────────────────────────────


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def codes_named_in(tree: ast.AST) -> list[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [value for value in constants if isinstance(value, str) and re.fullmatch(r"E\d{3}", value)]


@functools.cache
def templates() -> dict[str, ErrorTemplate[Any]]:
    return {name: value for name, value in vars(errors).items() if isinstance(value, ErrorTemplate)}


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    """Yield every call of a name of the module, with the name."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="errors"), attr=name)):
                    yield path, node, name
                case ast.Call(func=ast.Name(id=name)) if path.name == "errors.py":
                    yield path, node, name


@functools.cache
def names_used() -> set[str]:
    """Return the names that other modules use, and the private names that the module uses."""
    used: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "errors":
                used.add(node.attr)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and path.name == "errors.py":
                used |= {node.id} & {name for name in templates() if name.startswith("_")}
    return used


@pytest.mark.rule("source-20")
def test_every_template_has_the_class_of_its_code():
    assert {name for name, template in templates().items() if CODES[template.code][0] is not template.kind} == set()
    assert {template.code for template in templates().values()} == CODES.keys()


@pytest.mark.rule("source-20")
def test_every_template_and_function_that_makes_an_error_is_used():
    functions = {name for name, value in vars(errors).items() if inspect.isfunction(value)}
    assert {name for name in functions if not name.startswith("_")} - names_used() == set()
    assert templates().keys() - names_used() == set()


def test_every_template_names_its_fields_only():
    parts = string.Formatter().parse
    for template in templates().values():
        texts = [template.message, *template.explanation, *template.hints]
        named = {field for text in texts for _, field, _, _ in parts(text) if field is not None}
        assert {field for field in template.fields if field.startswith("_")} <= named <= {*template.fields}


def test_every_call_of_a_template_gives_its_fields():
    wrong = [
        f"{path.name}:{call.lineno}: {name} takes {', '.join(templates()[name].fields)}"
        for path, call, name in calls()
        if name in templates()
        and (
            len(call.args) != len(templates()[name].fields)
            or any(isinstance(argument, ast.Starred) for argument in call.args)
            or {keyword.arg for keyword in call.keywords} - {"explanation", "hints"}
        )
    ]
    assert wrong == []


@pytest.mark.rule("source-20")
def test_codes_are_named_where_their_texts_are_only():
    others = [path for path in sorted(SOURCE.rglob("*.py")) if path.name not in WITH_TEXTS]
    assert {path.name: codes_named_in(parsed(path)) for path in others if codes_named_in(parsed(path))} == {}


def test_codes_are_in_order_and_have_a_meaning():
    assert list(CODES) == sorted(CODES)
    assert all(re.fullmatch(r"E\d{3}", code) for code in CODES)
    assert len({meaning for _, meaning in CODES.values()}) == len(CODES)


# ── texts ──────────────────────────────────────────────────────────────────────────────────────────

TEXTS = {
    "E001": (
        errors.offline_without_source(),
        """\
Error: --offline requires --source with local filesystem path

Example:
  pair install --offline --source ./local-kb""",
    ),
    "E002": (
        errors.offline_with_url(),
        """\
Error: Cannot use --offline with remote URL

--offline requires local filesystem path.

Example:
  pair install --offline --source ./local-kb""",
    ),
    "E003": (
        errors.source_path_missing("/path/to/missing"),
        """\
Error: KB source path does not exist: /path/to/missing

Please verify:
  • Path is correct
  • Path is accessible
  • Path contains valid KB content""",
    ),
    "E004": (
        errors.source_format_unknown("invalid-source"),
        """\
Error: Invalid source format: invalid-source

Source must be:
  • HTTP/HTTPS URL: https://example.com/kb.zip
  • Absolute path: /absolute/path/to/kb
  • Relative path: ./relative/path/to/kb""",
    ),
    "E005": (
        errors.download_failed("https://example.com/kb.zip", "Connection timeout after 30s"),
        """\
Error: Failed to download KB from https://example.com/kb.zip

Network error: Connection timeout after 30s

Suggestions:
  • Check internet connection
  • Verify firewall settings
  • Try different mirror with --source
  • Use offline mode with local KB""",
    ),
    "E007": (
        errors.download_while_offline(),
        """\
Error: Cannot auto-download KB in offline mode

Use --source with local filesystem path:
  pair install --offline --source ./local-kb""",
    ),
}


@pytest.mark.rule("source-20")
@pytest.mark.parametrize("code", TEXTS)
def test_text_is_that_of_the_catalogue(code: str):
    error, text = TEXTS[code]
    assert error.code == code
    assert format_error(error) == f"{text}\n\nCode: {code}"


@pytest.mark.rule("source-20")
def test_text_of_a_failed_checksum_says_what_was_expected_between_what_the_catalogue_says():
    text = format_error(errors.checksum_failed("File: kb.zip", ["Expected SHA-256: 1", "Actual SHA-256:   2"]))
    assert text == (
        "Error: KB checksum validation failed\n\nDownloaded file may be corrupted or tampered with."
        "\n\nFile: kb.zip\nExpected SHA-256: 1\nActual SHA-256:   2\n\n"
        "Suggestions:\n  • Retry download\n  • Clear cache: rm -rf ~/.pair/kb/\n  • Verify source integrity"
        "\n\nCode: E006"
    )


@pytest.mark.rule("source-20")
def test_failed_checksum_names_the_cache_that_is_used():
    assert "Clear cache: rm -rf /srv/cache" in format_error(errors.checksum_failed("f", "r", cache="/srv/cache"))


@pytest.mark.rule("source-8")
def test_unknown_format_suggests_a_path_that_exists():
    text = format_error(errors.source_format_unknown("kb", suggestion="Did you mean ./kb ?"))
    assert text.startswith("Error: Invalid source format: kb\n\nDid you mean ./kb ?\n\nSource must be:\n")


@pytest.mark.rule("source-26")
@pytest.mark.parametrize(("count", "ending"), [(10, "  9.md"), (11, "  9.md\n  and 1 more"), (25, "and 15 more")])
def test_long_list_of_files_is_cut(count: int, ending: str):
    names = [f"{number}.md" for number in range(count)]
    error = errors.files_in_the_way("kb", names, is_installed=False)
    assert error.explanation.endswith(ending)
    assert error.details["files"] == names


def test_long_list_of_damage_is_cut():
    error = errors.installed_kb_damaged("kb", [f"{number}.md" for number in range(8)], ["a.md", "b.md", "c.md"])
    assert error.explanation.splitlines()[0] == "  modified: 0.md"
    assert error.explanation.splitlines()[-2:] == ["  missing: b.md", "  and 1 more"]


def test_failure_without_a_path_names_none():
    assert errors.storage_failed("", "no space").message == "Cannot use the file system: no space."
    assert errors.storage_failed("kb", "no space").message == "Cannot write kb: no space."
    assert errors.storage_failed("kb", "denied", is_reading=True).message == "Cannot read kb: denied."


# ── JSON ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("source-20")
def test_json_of_an_error_has_code_message_and_suggestion():
    assert errors.source_path_missing("/kb").to_json() == {
        "error": {
            "code": "E003",
            "message": "KB source path does not exist: /kb",
            "recoverable": False,
            "suggestion": "Path is correct\nPath is accessible\nPath contains valid KB content",
            "details": {"path": "/kb"},
        }
    }


def test_json_of_an_error_leaves_out_what_it_does_not_have():
    assert errors.command_line_invalid("no such option").to_json() == {
        "error": {"code": "E402", "message": "no such option", "recoverable": False}
    }


def test_retryable_error_says_so_in_json():
    assert errors.download_failed("u", "r").to_json()["error"]["recoverable"] is True


@pytest.mark.parametrize(
    ("stored", "configured", "way"),
    [
        ("ngram-384-v1", "static-wordllama-l2_supercat-256-64b47a2d", "PAIR__ENGINE__EMBEDDER=ngram"),
        ("static-wordllama-l2_supercat-256-64b47a2d", "minilm-1", "PAIR__ENGINE__EMBEDDER=static"),
        ("ngram-384-v1", "ngram-64-v1", "engine.embedding_dimension"),
        ("openai-nomic", "openai-other", "engine.embedding_model"),
    ],
)
def test_a_kb_of_another_embedder_is_refused_with_the_way_back(stored: str, configured: str, way: str) -> None:
    hints = errors.embedder_differs("handbook", stored, configured).hints
    assert way in hints[0]
    assert "pair ingest PATH --kb NAME" in hints[1]
    assert "pair reembed" in hints[2]
