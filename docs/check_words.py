"""Check of Markdown pages, docstrings and texts of the source for words and phrases that our style bans.

`make check` runs it.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BANNED = {
    r"somebody|someone|nobody|everybody|anybody|whoever": "name the actor: the caller, the writer, a client",
    r"those who|who is let in|let in|lets? others in": "name the actor; say authenticate or allow",
    r"anew": "again",
    r"told": "reported; or say who reports what",
    r"let go|lets go of": "removed, released",
    r"left in peace": "kept, not touched",
    r"under way": "running, in progress",
    r"what there is|how things stand|all that there is": "name the thing",
    r"as (it|they) (is|are|was|were)(?= *[.,;:)])": "unchanged; or say which state",
    r"gone back to|go back to|goes back to": "restored, rolled back",
    r"of (its|our|their) own(?= *[.,;:)])": "its own, separate",
    r"the (shelf|crew|parcel|workshop|desk)": "use the term of the field",
    r"is away|are away|went away": "is unavailable",
}
"""Words and phrases, as patterns without regard to case, and what to write instead."""

ALLOWED = {
    ("src/pair/ai/llm_entities.py", "of their own"),
    ("src/pair/ai/prompts.py", "told"),
    ("src/pair/librarians/conversation.py", "anybody"),
    ("src/pair/librarians/conversation.py", "as they are"),
    ("src/pair/librarians/conversation.py", "everybody"),
    ("src/pair/librarians/conversation.py", "somebody"),
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
    """Yield the file, line number and value of each string in the source: docstrings, messages, help."""
    for path in sorted((ROOT / "src" / "pair").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.relative_to(ROOT).as_posix(), node.lineno, node.value


def report(texts: Iterator[tuple[str, int, str]]) -> int:
    """Print each banned phrase with its place and replacement, and return their number."""
    found = ((name, line, hit) for name, line, text in texts for hit in _PATTERN.finditer(text))
    hits = [(name, line, hit) for name, line, hit in found if (name, hit[0].lower()) not in ALLOWED]
    for name, line, hit in hits:
        advice = list(BANNED.values())[int((hit.lastgroup or "g0")[1:])]
        print(f"{name}:{line}: {hit[0]!r}: {advice}")
    return len(hits)


if __name__ == "__main__":
    in_pages, in_source = report(list_markdown_lines()), report(list_source_texts())
    sys.exit(1 if in_pages or in_source else 0)
