"""Check of pages, docstrings, comments, texts and test names for words and phrases that our style bans.

`make check` runs it.
"""

import ast
import io
import itertools
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BANNED = {
    r"somebody|someone|nobody|everybody|anybody|whoever": "name the actor: the caller, the writer, a client",
    r"those who|who is let in|let in|lets? others in": "name the actor; say authenticate or allow",
    r"anew": "again",
    r"told": "reported; or say who reports what",
    r"lets? go|letting go|lets go of": "removed, released",
    r"(left )?in peace": "kept, not touched",
    r"under way": "running, in progress",
    r"good order": "healthy, intact",
    r"what there is|how things stand|all that there is": "name the thing",
    r"as (it|they) (is|are|was|were)(?= *[.,;:)])": "unchanged; or say which state",
    r"gone back to|go back to|goes back to": "restored, rolled back",
    r"of (its|our|their) own(?= *[.,;:)])": "its own, separate",
    r"the desk|(?<!-)shelf|shelves|crews?|parcels?|workshop|patience": "use the term of the field",
    r"(is|are) away|(went|goes|gone) away": "is unavailable",
    r"telling words?": "content words",
    r"another (size|length|type) than|of another (kind|type|size)|other bytes": "different, or the wrong type",
    r"is no (list|text|object|source|number|document|name)(?=\W)": "is not a list, is not a string",
    r"carries none|is there twice|belong together(?= *[.,;])": "has no, is listed twice, match",
    r"h(a|u)ngs? up|breaks? off|broke off": "closes the connection, ends early",
    r"in the store any more|not any more": "no longer",
}
"""Words and phrases, as patterns without regard to case, and what to write instead."""

ALLOWED = {
    ("src/pair/ai/llm_entities.py", "of their own"),
    ("src/pair/ai/prompts.py", "told"),
    ("src/pair/librarians/questions.py", "anybody"),
    ("src/pair/librarians/questions.py", "as they are"),
    ("src/pair/librarians/questions.py", "everybody"),
    ("src/pair/librarians/questions.py", "somebody"),
    ("src/pair/librarians/questions.py", "told"),
}
"""Exceptions, such as lists of words and prompts: a file, and a phrase in lower case that is right there."""

GENERATED = {f"docs/reference/{name}.md" for name in ("cli", "errors", "python", "rules", "settings")}
"""Pages whose texts come from the source, where they are checked, or from the specification."""

_PATTERN = re.compile("|".join(rf"(?P<g{n}>\b(?:{words})\b)" for n, words in enumerate(BANNED)), re.IGNORECASE)


def list_markdown_lines() -> Iterator[tuple[str, int, str]]:
    """Yield the file, number and text of each line of prose, without code blocks and inline code."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "changes").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for path in sorted(paths):
        name = path.relative_to(ROOT).as_posix()
        is_code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            is_code ^= line.lstrip().startswith("```")
            if not is_code and name not in GENERATED:
                yield name, number, re.sub(r"`[^`]*`", "``", line)


def list_source_texts() -> Iterator[tuple[str, int, str]]:
    """Yield the file, line number and text of each string and comment in the source, and each line of the page."""
    for path in sorted((ROOT / "src" / "pair").rglob("*.py")):
        name, content = path.relative_to(ROOT).as_posix(), path.read_bytes()
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield name, node.lineno, node.value
        for token in tokenize.tokenize(io.BytesIO(content).readline):
            if token.type == tokenize.COMMENT:
                yield name, token.start[0], token.string
    app = ROOT / "src" / "pair" / "app"
    for path in sorted([*app.glob("ui/*.js"), *app.glob("ui/*.html"), *app.glob("http/*.json")]):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield path.relative_to(ROOT).as_posix(), number, line


def list_test_names() -> Iterator[tuple[str, int, str]]:
    """Yield the file, line number and name of each test, as words."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if found := re.match(r"\s*(?:async )?def (test_\w+)", line):
                yield path.relative_to(ROOT).as_posix(), number, found[1].replace("_", " ")


def report_moods() -> int:
    """Print each docstring of a function that begins in the third person, and return their number."""
    count = 0
    for path in sorted((ROOT / "src" / "pair").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if re.match(r"(Returns|Raises|Yields|Gives|Makes|Checks|Tells) ", text):
                    print(f"{path.relative_to(ROOT)}:{node.lineno}: {text.split()[0]!r}: start with an imperative")
                    count += 1
    return count


def report(texts: Iterator[tuple[str, int, str]]) -> int:
    """Print each banned phrase with its place and replacement, and return their number."""
    found = ((name, line, hit) for name, line, text in texts for hit in _PATTERN.finditer(text))
    hits = [(name, line, hit) for name, line, hit in found if (name, hit[0].lower()) not in ALLOWED]
    for name, line, hit in hits:
        advice = list(BANNED.values())[int((hit.lastgroup or "g0")[1:])]
        print(f"{name}:{line}: {hit[0]!r}: {advice}")
    return len(hits)


if __name__ == "__main__":
    texts = itertools.chain(list_markdown_lines(), list_source_texts(), list_test_names())
    sys.exit(1 if report(texts) + report_moods() else 0)
