"""Generator of the reference pages for the command line, settings, errors and Python.

`python docs/generate.py` writes the pages. `--check` writes nothing, names stale pages, and exits 1 if there are any.
"""

import argparse
import ast
import dataclasses
import inspect
import itertools
import json
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt

import pair
from pair import error_tree, errors, settings
from pair.app import render
from pair.app.cli.commands import build
from pair.auth import trust
from pair.kb.maintenance import KbBackup, KbGraph, KbMaintenance, KbVersions
from pair.sync.collection import CollectionSettings

REFERENCE = Path(__file__).resolve().parent / "reference"
PACKAGE = Path(inspect.getfile(pair)).resolve().parent
NOTE = "<!-- Written by docs/generate.py from the code: change the code, then run `make docs`. -->"
# On a terminal of 80 columns the help is wrapped at 78.
HELP_COLUMNS = 78


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    only_check = parser.parse_args(arguments).check
    stale = [name for name, page in PAGES.items() if _is_stale(name, page(), only_check=only_check)]
    for name in stale:
        print(f"{'stale' if only_check else 'written'}: docs/reference/{name}")
    return 1 if stale and only_check else 0


def _is_stale(name: str, text: str, *, only_check: bool) -> bool:
    path = REFERENCE / name
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    if not only_check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return True


def _page(title: str, *blocks: str) -> str:
    return "\n\n".join([f"# {title}", NOTE, *(block.strip("\n") for block in blocks if block)]) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(" | ".join(["", *(_cell(cell) for cell in line), ""]).strip() for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _fenced(text: str, language: str = "text") -> str:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join([f"```{language}", *lines, "```"])


# ── cli.md ─────────────────────────────────────────────────────────────────────────────────────────


def cli_page() -> str:
    root = build()
    context = root.make_context("pair", [], resilient_parsing=True, terminal_width=HELP_COLUMNS)
    blocks = ["## pair", _fenced(root.get_help(context))]
    common = {param.name for param in root.params}
    for name, command, below in _commands_below("pair", root, context):
        shared = [param for param in command.params if param.name in common]
        for param in shared:
            param.hidden = True
        command.add_help_option = False
        options = ", ".join(f"`{option}`" for param in shared for option in param.opts)
        blocks += [f"## {name}", _fenced(command.get_help(below)), f"Shared: {options}."]
    return _page("Command line", *blocks, "## Exit status", _exit_table())


def _commands_below(path: str, group: Any, context: Any) -> Iterator[tuple[str, Any, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        below = command.make_context(name, [], parent=context, resilient_parsing=True)
        if hasattr(command, "commands"):
            yield from _commands_below(f"{path} {name}", command, below)
        else:
            yield f"{path} {name}", command, below


def _exit_table() -> str:
    rows = [("0", "success")]
    for status in sorted({kind.exit_status for kind in _error_classes()}):
        kinds = [kind for kind in _error_classes() if kind.exit_status == status]
        rows.append((str(status), " or ".join(f"`{kind.__name__}`" for kind in kinds)))
    rows.append((str(errors.BUG_EXIT_STATUS), "a bug in pair"))
    rows.append((str(errors.INTERRUPTED_EXIT_STATUS), "interrupted from the keyboard"))
    return _table(("status", "meaning"), rows) + "\n\nThe classes are described in [errors](errors.md)."


# ── settings.md ────────────────────────────────────────────────────────────────────────────────────

_WORDS: dict[Any, str] = {
    str: "string",
    bool: "true or false",
    int: "whole number",
    float: "number",
    tuple[Any, ...]: "list",
    Mapping[str, CollectionSettings]: "collections by name",
    tuple[str, ...]: "list of strings; separated by commas in a variable",
}


def settings_page() -> str:
    used = _names_read_in_the_code()
    places = ", ".join(f"`./{place}`" for place in settings.CONFIG_PLACES)
    order = (
        f"`--config` names the configuration file, else `PAIR_CONFIG`, else it is the first existing file of {places}. "
        "The file is optional. A later source overrides an earlier one: default, file, named variable, "
        f"`{settings.OVERRIDE_PREFIX}SECTION__KEY`, as in `PAIR__KB__SOURCES_DIR`. "
        "An unknown section or key is an error (E401). "
        "In the file, `${NAME}` becomes the value of that environment variable, which must be set; "
        "`$${NAME}` means a literal `${NAME}`. A file that you did not name counts in full only in a "
        "[trusted folder](../guides/trust.md): see [the last table](#before-a-folder-is-trusted)."
    )
    blocks = [order]
    for section, policy in settings.SECTIONS.items():
        blocks += [f"## {section}", inspect.getdoc(policy) or "", _settings_table(section, policy, used)]
    blocks += ["## Environment variables", _variables_table(), "## Example", _fenced(_example(), "yaml")]
    return _page("Settings", *blocks, "## Before a folder is trusted", _trust_table())


def _trust_table() -> str:
    places = {
        "path": "a path inside the folder",
        "store": "a path inside the folder, `memory:`",
    }
    rows = [("every other key", "every value without `${NAME}`")]
    for key, rule in trust.RULES.items():
        safe = ", ".join(f"`{json.dumps(value)}`" for value in trust.SAFE_VALUES.get(key, ()))
        counts = places.get(rule) or safe or ("a loopback address" if key == "server.host" else "nothing")
        if key == "librarians.entries":
            counts = "entries without `function`, `endpoint` and `token`"
        if rule != "safe" or key == "librarians.entries":
            rows.append((f"`{key}`", counts))
    return _table(("key", "values that count"), rows)


def _settings_table(section: str, policy: Any, used: set[str]) -> str:
    meanings = _attribute_docs(policy)
    hints = typing.get_type_hints(policy, include_extras=True)
    rows = []
    for key in dataclasses.fields(policy):
        if key.name not in used:
            raise LookupError(f"nothing reads {section}.{key.name}")
        meaning = meanings[key.name]
        variable = f"{settings.OVERRIDE_PREFIX}{section}__{key.name}".upper()
        kind = _kind_in_words(hints[key.name])
        rows.append(
            (
                f"`{section}.{key.name}`",
                kind,
                _shown(() if key.default is dataclasses.MISSING else key.default),
                meaning,
                f"`{variable}`",
            )
        )
    return _table(("key", "kind", "default", "meaning", "environment variable"), rows)


def _kind_in_words(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in typing.get_args(hint))
    limits = getattr(hint, "__metadata__", ())
    words = [_WORDS[typing.get_args(hint)[0] if limits else hint]]
    words += [f"above {limit.gt}" for limit in limits if isinstance(limit, Gt)]
    words += [f"at least {limit.ge}" for limit in limits if isinstance(limit, Ge)]
    return ", ".join(words)


def _shown(value: Any) -> str:
    if value in ("", ()):
        return "empty"
    if isinstance(value, bool):
        return f"`{value}`".lower()
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _variables_table() -> str:
    rows = [(f"`{name}`", f"`{section}.{key}`") for name, (section, key) in settings.NAMED_VARIABLES.items()]
    rows.append(("`PAIR_CONFIG`", "The configuration file, if `--config` does not name one."))
    found = (re.fullmatch(r"([A-Z_]+): (.+)", text) for text in _attribute_docs(settings.Settings).values())
    rows += [(f"`{match[1]}`", match[2][0].upper() + match[2][1:]) for match in found if match]
    rows.append(
        (
            "`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`, `SSL_CERT_DIR`",
            "Read by the HTTP library, with their usual meanings.",
        )
    )
    return _table(("variable", "sets"), rows)


def _example() -> str:
    return """
sources:
  release_repository: team/handbook
  release_asset: handbook-*.zip
  require_checksum: true
kb:
  sources_dir: docs/handbook
"""


def _names_read_in_the_code() -> set[str]:
    """Return the names of all attributes that the package reads."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]
    return {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def _attribute_docs(kind: Any) -> dict[str, str]:
    """Return the docstring below each attribute of a class."""
    body = _class_body(kind)
    return {
        node.target.id: after.value.value
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def _class_body(kind: Any) -> list[ast.stmt]:
    node = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    if not isinstance(node, ast.ClassDef):
        raise TypeError(kind)
    return node.body


# ── errors.md ──────────────────────────────────────────────────────────────────────────────────────

_SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "no_such_version": {"kb_id": "default", "wanted": "3", "kept": [9, 8, 7]},
    "index_of_another_embedder": {"kb_id": "default", "found": "minilm-384-v1", "configured": "static-256-v1"},
    "index_damaged": {"label": "handbook 1.0.0", "reason": "a shard is not the one that is packaged: shards/0a1b2c"},
    "past_is_read_only": {"kb_id": "default", "number": 7},
    "cannot_compare": {
        "side": "handbook.zip",
        "reason": "it is not a version of a KB",
        "hint": "A path begins with ./ : ./handbook.zip",
    },
    "nothing_to_compare": {"path": "./handbook.tar"},
    "answer_unreadable": {"path": "answer.json", "reason": "it is not JSON"},
    "nothing_to_reproduce": {"path": "answer.json"},
    "receipt_unreadable": {"path": "receipt.json", "reason": "there is no such file"},
    "no_receipt": {"reason": "it does not come from one knowledge base"},
    "questions_invalid": {"where": "handbook/questions.jsonl:2", "reason": "the question is empty"},
    "no_questions": {"path": "handbook"},
    "reproduce_elsewhere": {"kb_id": "payroll:default"},
    "rolled_back_meanwhile": {"kb_id": "default", "began": 7, "rolled_back": 9},
    "manifest_lost": {"kb_id": "default"},
    "package_of_another_schema": {"label": "handbook", "schema_version": 2},
    "export_damaged": {"file": "backup.jsonl", "reason": "its last line is missing"},
    "export_not_understood": {"file": "backup.jsonl", "reason": "it has format 2, which is newer than this pair"},
    "export_of_another_embedder": {
        "file": "backup.jsonl",
        "made_with": "minilm-384-v1",
        "configured": "static-256-v1",
    },
    "feed_unreadable": {"feed": "https://example.com/releases.json", "reason": "It is not JSON"},
    "release_missing": {
        "feed": "https://example.com/releases.json",
        "reason": "it has several KBs",
        "known": ["cookbook 2.1.0", "handbook 1.0.0"],
    },
    "version_moved": {
        "feed": "https://example.com/releases.json",
        "version": "1.0.0",
        "installed": "0a" * 32,
        "offered": "1b" * 32,
    },
    "version_published": {
        "place": "dist",
        "release": "handbook 1.0.0",
        "published": "0a" * 32,
        "given": "1b" * 32,
    },
    "release_differs": {
        "feed": "https://example.com/releases.json",
        "release": "handbook 1.1.0",
        "said": "handbook 1.0.0",
    },
    "version_older": {
        "source": "https://example.com/releases.json",
        "name": "handbook",
        "installed": "1.1.0",
        "offered": "1.0.0",
    },
    "not_conformant": {"path": "./bundle", "faults": ["orders.md: its front matter has no type"]},
    "lock_differs": {
        "lock": "pair.lock",
        "drifts": ["default: version: locked 1.0.0, found 1.1.0", "default: edited: README.md"],
    },
    "lock_unusable": {"lock": "pair.lock", "reason": "There is no such file."},
    "signature_refused": {
        "subject": "https://example.com/kb.zip",
        "reason": "it was made with another key",
        "signed_by": "8783464D7890B3DA",
        "expected": ["27E74BA92F4C7EEA"],
    },
    "key_unusable": {"key": "minisign.key", "reason": "the password is wrong, or the key is damaged"},
    "offline_without_source": {},
    "offline_with_url": {},
    "source_path_missing": {"path": "/home/ada/project/local-kb"},
    "source_format_unknown": {"source": "handbook", "suggestion": "Did you mean ./handbook ?"},
    "download_failed": {"url": "https://example.com/kb.zip", "reason": "Connection timeout after 30s"},
    "checksum_failed": {
        "subject": "File: https://example.com/kb.zip",
        "reason": [f"Expected SHA-256: {'0a' * 32}", f"Actual SHA-256:   {'1b' * 32}"],
    },
    "download_while_offline": {},
    "git_failed": {
        "url": "https://example.com/kb.git#v2",
        "reason": "fatal: couldn't find remote ref v2",
    },
    "archive_refused": {"archive": "kb.zip", "reason": "path leads out of the archive: '../outside.md'"},
    "storage_failed": {"path": ".pair/knowledge", "reason": "permission denied"},
    "link_refused": {"path": ".pair/cache-scratch"},
    "foreign_file": {"path": ".pair/.index-cache.json.lock"},
    "files_in_the_way": {"target": ".pair/knowledge", "files": ["README.md"], "is_installed": True},
    "no_kb_at": {"path": "handbook", "reason": "the folder has no files"},
    "nothing_installed_at": {"path": ".pair/knowledge"},
    "installed_kb_damaged": {"path": ".pair/knowledge", "modified": ["README.md"], "missing": ["clocks/tsc.md"]},
    "record_unreadable": {
        "path": ".pair/knowledge/.pair-install.jsonl",
        "reason": "its first line is damaged",
    },
    "cannot_package": {"folder": "handbook", "reason": "names differ only in case: 'Notes.md' and 'notes.md'"},
    "source_overlaps_target": {"source": "/home/ada/handbook", "target": "handbook"},
    "target_changing": {"target": ".pair/knowledge"},
    "sync_running": {"holder": "process 4242"},
    "sync_state_unreadable": {
        "path": ".pair/index-cache.json",
        "reason": "It is not valid JSON",
        "kept_at": ".pair/index-cache.json.damaged-20260131T120000",
    },
    "no_url_matches": {"pattern": "*/guide/*"},
    "document_synced": {"ids": ["notes.txt"]},
    "sync_place_missing": {"what": "sources folder", "path": ".pair/knowledge"},
    "kb_uninitialised": {"kb_id": "handbook"},
    "manifest_changed": {"kb_id": "handbook"},
    "cache_budget_exceeded": {"folder": ".pair/cache", "max_bytes": 1_000_000, "wanted_bytes": 33_554_432},
    "stored_data_damaged": {
        "key": "handbook.duckdb.shards/3f…/shard-00000.search",
        "reason": "its SHA-256 is not the one in the manifest",
    },
    "publish_unknown": {"kb_id": "handbook"},
    "kb_id_invalid": {"kb_id": "team/handbook"},
    "document_invalid": {"document_id": "faq", "reason": "its vector contains a value that is not a number"},
    "argument_invalid": {"name": "limit", "expected": "a whole number", "given": "x"},
    "workers_died": {"part": 3, "attempts": 3, "reason": "was ended by SIGKILL"},
    "build_lost": {"kb_id": "handbook"},
    "no_such_document": {"kb_id": "handbook", "document_id": "faq"},
    "query_invalid": {"reason": "the query is empty"},
    "vector_size_differs": {"kb_id": "handbook", "expected": 384, "given": 768},
    "embedder_differs": {
        "kb_id": "handbook",
        "stored": "ngram-384-v1",
        "configured": "static-wordllama-l2_supercat-256-64b47a2d",
    },
    "documents_without_text": {"kb_id": "handbook", "document_ids": ["image-1", "image-2"], "count": 7},
    "reembedding_running": {"kb_id": "handbook", "holder": "process 4242"},
    "model_file_unusable": {
        "path": "wordllama/weights/l2_supercat_256.safetensors",
        "reason": "its SHA-256 is not the expected one",
        "requirement": "wordllama>=0.4,<0.5",
    },
    "judged_set_missing": {"path": "support-questions/qrels.tsv", "what": "the file"},
    "judged_set_invalid": {"where": "support-questions/queries.jsonl:7", "reason": "the line is not JSON"},
    "judgements_unmatched": {
        "path": "support-questions/qrels.tsv",
        "what": "documents",
        "count": 2,
        "ids": ["faq/old.md", "faq/older.md"],
    },
    "graph_unavailable": {"kb_id": "handbook", "missing": ["shard-00001"], "total": 2},
    "lease_held": {"name": "handbook", "holder": "build-7, process 4242", "expires_at": "2026-01-31T12:00:30Z"},
    "store_unreachable": {"address": "s3://example-kb/handbook", "reason": "The server answered 403 Forbidden"},
    "lease_server_unreachable": {"address": "redis://redis.example.com/0", "reason": "No connection to Redis"},
    "store_without_compare_and_swap": {
        "address": "s3://example-kb/handbook",
        "reason": "a blob was created twice under one key",
    },
    "lease_lost": {"name": "handbook"},
    "filter_invalid": {"text": "{'year': {'above': 2020}}", "reason": "unknown operator: 'above'"},
    "model_unreachable": {"address": "http://127.0.0.1:11434/v1", "reason": "Connection refused"},
    "model_reply_unusable": {"address": "http://127.0.0.1:11434/v1", "reason": "the reply is empty"},
    "model_budget_spent": {"model": "llama3.2", "needed": 5200, "left": 1800},
    "settings_invalid": {
        "where": "config.yaml:2",
        "reason": "unknown key of sources: retrys",
        "hints": ["Did you mean retries ?"],
    },
    "request_invalid": {"reason": "query: field required"},
    "credentials_refused": {"reason": "the key is not known"},
    "not_allowed": {"what": "writing needs the scope write"},
    "no_such_route": {"path": "/rag/quary"},
    "no_such_librarian": {"librarian_id": "payroll"},
    "no_such_remote_librarian": {"librarian_id": "payroll"},
    "cannot_open_citation": {"librarian_id": "payroll", "endpoint": "https://example.com/ask"},
    "no_such_model": {"model": "gpt-4o", "known": ["pair", "default"]},
    "method_not_allowed": {"method": "PUT", "allowed": "GET, HEAD"},
    "request_too_large": {"what": "The request", "most": 52_428_800},
    "too_many_requests": {},
    "took_too_long": {"seconds": 30},
    "head_too_large": {"what": "65,536 bytes"},
    "server_full": {"what": "other request bodies use all memory for bodies"},
    "request_too_slow": {"seconds": 30},
    "server_stopping": {},
    "address_unusable": {"host": "127.0.0.1", "port": 8080, "reason": "address already in use"},
    "no_such_key": {"key_id": "0a1b2c3d4e5f"},
    "keys_untrusted": {"path": ".pair/keys.json"},
    "nothing_to_trust": {"folder": "/home/me/project"},
    "jwks_unreadable": {"reason": "ConnectTimeout"},
    "librarian_without_past": {"librarian_id": "router"},
    "write_waiting": {"kb_id": "handbook", "seconds": 30},
    "not_over_http": {"what": "a search with a vector"},
    "server_unreachable": {"address": "http://127.0.0.1:8080", "reason": "Connection refused"},
    "command_line_invalid": {
        "reason": "Cannot run pair install: no such option: --sorce",
        "hints": ["pair install --help"],
    },
}


def errors_page() -> str:
    rows = [
        (
            f"[{code}](#{code.lower()})",
            f"`{kind.__name__}`",
            str(kind.exit_status),
            str(_status_of(code, kind)),
            meaning,
        )
        for code, (kind, meaning) in errors.CODES.items()
    ]
    introduction = (
        "Every error has a class, which tells the caller what to do next, and a code, which tells what happened. "
        "A code never changes its meaning. The texts below show sample cases."
    )
    blocks = [
        introduction,
        _table(("code", "class", "exit status", "HTTP status", "meaning"), rows),
        "## Classes",
        _classes_table(),
        _fenced(_tree_in_docstring()),
    ]
    texts = _texts_by_code()
    for code in errors.CODES:
        blocks += [f"## {code}", *map(_fenced, texts[code])]
    blocks += ["## As JSON", _json_words(), _fenced(_json_sample(), "json")]
    return _page("Errors", *blocks)


def _status_of(code: str, kind: type[errors.PairError]) -> int:
    return errors.HTTP_STATUSES.get(code, kind.http_status)


def _error_classes() -> list[type[errors.PairError]]:
    return errors.PairError.__subclasses__()


def _classes_table() -> str:
    rows = []
    for kind in _error_classes():
        builtin = next((base for base in kind.__bases__ if base is not errors.PairError), None)
        rows.append(
            (
                f"`{kind.__name__}`",
                f"`{builtin.__name__}`" if builtin else "",
                "yes" if kind.retryable else "no",
                ", ".join(code for code, (owner, _) in errors.CODES.items() if owner is kind) or "none yet",
            )
        )
    return _table(("class", "also a", "a retry may succeed", "codes"), rows)


def _tree_in_docstring() -> str:
    return (error_tree.__doc__ or "").split("\n\n")[1]


def _texts_by_code() -> dict[str, list[str]]:
    """Return sample texts by code. Fail if an error or a code has no sample."""
    texts: dict[str, list[str]] = {code: [] for code in errors.CODES}
    for name, make in inspect.getmembers(errors):
        if name.startswith("_"):
            continue
        if isinstance(make, error_tree.ErrorTemplate):
            values = {field: value for field, value in _SAMPLES[name].items() if field != "hints"}
            error = make(*values.values(), hints=_SAMPLES[name].get("hints", ()))
        elif inspect.isfunction(make) and make.__module__ == errors.__name__:
            error = make(**_SAMPLES[name])
        else:
            continue
        texts[error.code].append(render.format_error(error))
    if missing := [code for code, samples in texts.items() if not samples]:
        raise LookupError(f"no function makes {', '.join(missing)}")
    return texts


def _json_words() -> str:
    return (
        "With `--json` a failed command prints this object on standard output. Its exit status is the same. "
        'Empty `suggestion`, `explanation` and `details` are omitted. A bug has the code `"INTERNAL_ERROR"`.'
    )


def _json_sample() -> str:
    return json.dumps(errors.source_path_missing("/home/ada/project/local-kb").to_json(), indent=2)


# ── python.md ──────────────────────────────────────────────────────────────────────────────────────


KB_PARTS = {"versions": KbVersions, "maintenance": KbMaintenance, "backup": KbBackup, "graph": KbGraph}


def python_page() -> str:
    introduction = (
        "The public names of `pair` are listed below, and `__version__`. Everything else may change without notice. "
        "The fields of `Settings.kb` and `Settings.sources` are the keys in [settings](settings.md)."
    )
    blocks = [introduction]
    for name in pair.__all__:
        # The source of pair.open calls it open_kb.
        blocks += [
            f"## pair.{name}",
            *(text.replace("def open_kb(", "def open(") for text in _described(getattr(pair, name))),
        ]
        if name == "KnowledgeBase":
            for part, kind in KB_PARTS.items():
                blocks += [f"### kb.{part}", _own_doc(kind), *_methods(kind)]
    return _page("Python", *blocks)


def _described(thing: Any) -> list[str]:
    if inspect.ismodule(thing):
        return [
            "The module of all errors: the classes below, and `CODES`. See [errors](errors.md).",
            *_module_list(thing),
        ]
    if inspect.isfunction(thing):
        return [_fenced(_head_of(thing), "python"), _doc_of(thing)]
    if dataclasses.is_dataclass(thing):
        return [_own_doc(thing), _fields_table(thing), *_methods(thing)]
    # Only pair.open constructs a KnowledgeBase, so its __init__ is not documented.
    made_by_hand = () if thing is pair.KnowledgeBase else ("__init__",)
    return [_own_doc(thing), *_methods(thing, *made_by_hand), _fields_table(thing)]


def _module_list(module: Any) -> list[str]:
    kinds = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if issubclass(kind, errors.PairError)]
    return ["\n".join(f"- `{kind.__name__}`" for kind in kinds)]


def _own_doc(kind: Any) -> str:
    """Return the docstring of a class, or nothing for the generated one of a dataclass."""
    body = _class_body(kind)
    first = body[0]
    has_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (inspect.getdoc(kind) or "") if has_doc else ""


def _fields_table(kind: Any) -> str:
    meanings = _attribute_docs(kind)
    rows = []
    for node in _class_body(kind):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            default = "" if node.value is None else f"`{_default_of(node.value)}`"
            rows.append((f"`{name}`", _type_in_words(kind, node), default, meanings.get(name, "")))
    return _table(("field", "type", "default", "meaning"), rows) if rows else ""


def _type_in_words(kind: Any, node: ast.AnnAssign) -> str:
    """Return the type of a field; a named `Literal` is replaced by its values."""
    annotation = ast.unparse(node.annotation)
    named = getattr(sys.modules[kind.__module__], annotation, None)
    if typing.get_origin(named) is typing.Literal:
        return ", ".join(f'`"{value}"`' for value in typing.get_args(named))
    return f"`{annotation}`"


def _default_of(node: ast.expr) -> str:
    """Return the default of a field as source: `field(default_factory=KbSettings)` gives `KbSettings()`."""
    if isinstance(node, ast.Call):
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if "default_factory" in given:
            factory = ast.unparse(given["default_factory"])
            return "{}" if factory == "_no_metadata" else f"{factory}()"
        if "default" in given:
            return ast.unparse(given["default"])
    return ast.unparse(node)


def _methods(kind: Any, *special: str) -> list[str]:
    blocks = []
    members = {name: member for owner in kind.__mro__[-2::-1] for name, member in vars(owner).items()}
    for name, member in members.items():
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if inspect.isfunction(function) and (name in special or not name.startswith("_")):
            head = _head_of(function)
            if function is not member:
                head = f"@{type(member).__name__}\n{head}"
            blocks += [_fenced(head, "python"), _doc_of(function)]
    return blocks


def _doc_of(function: Callable[..., Any]) -> str:
    return inspect.cleandoc(function.__doc__ or "")


def _head_of(function: Callable[..., Any]) -> str:
    """Return the signature from the source, without decorators."""
    source = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(source).body[0]
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        raise TypeError(function)
    lines = source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1]
    signature = [re.sub(r"\s+# noqa.*", "", line) for line in lines]
    return "\n".join(signature).rstrip().removesuffix(":")


PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "settings.md": settings_page,
    "errors.md": errors_page,
    "python.md": python_page,
}

if __name__ == "__main__":
    sys.exit(main())
