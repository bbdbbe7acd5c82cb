"""Test questions of a KB: the requirements for their answers, and the comparison of the answers of two KBs.

A KB carries its questions in `questions.jsonl`, one JSON object per line:

    {"question": "Which port does it use?", "documents": ["ports.md"], "phrases": ["4460"]}
    {"question": "How is the weather?", "no_answer": true}

One of the documents must be cited, and every phrase must be part of the answer. Answers are made without a model, so
that the same KB always gives the same result.
"""

import asyncio
import contextlib
import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from pair import errors, files
from pair.kb.ingest import read_documents
from pair.kb.open import open_kb, temporary_kb
from pair.kb.package_index import open_package
from pair.librarians.kb_librarian import OUTCOME_KEY, KbLibrarian
from pair.packages import archive
from pair.packages.rules import INDEX_FOLDER, INDEX_MANIFEST, MANIFEST_NAME
from pair.settings import Settings
from pair.sync.discover import QUESTIONS_NAME
from pair.values import parse_json

if TYPE_CHECKING:
    from pair.kb.kb import KnowledgeBase

_MOST_BYTES = 16_000_000
_LOST_CONFIDENCE = 0.1
"""Minimum loss of confidence to report."""

_MOST_SHOWN = 200
"""Number of characters of a phrase that a report shows."""

Text = Annotated[str, msgspec.Meta(min_length=1)]


class ExpectedAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question, and the requirements for its answer."""

    question: Text
    documents: tuple[Text, ...] = ()
    """At least one of these must be cited."""
    phrases: tuple[Text, ...] = ()
    """All of these must be part of the answer. Case and white space do not matter."""
    no_answer: bool = False
    """Whether the KB must not claim an answer."""


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    outcome: str
    """`answer`, `passages` or `nothing`."""
    confidence: float
    documents: tuple[str, ...]
    """The cited documents, in order."""
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"outcome": self.outcome, "confidence": round(self.confidence, 4), "documents": list(self.documents)}


@dataclass(frozen=True, slots=True)
class TestedQuestion:
    question: str
    given: GivenAnswer
    faults: tuple[str, ...]
    """Why the answer is not the expected one."""

    def to_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "passed": not self.faults,
            "faults": list(self.faults),
            **self.given.to_json(),
        }


AnswerChange = Literal["other_document", "unanswered", "answered", "less_confident"]


@dataclass(frozen=True, slots=True)
class ChangedAnswer:
    question: str
    change: AnswerChange
    before: GivenAnswer
    after: GivenAnswer

    def to_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "change": self.change,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }


def read_questions(content: bytes, name: str) -> list[ExpectedAnswer]:
    """Parse the lines of a questions file. Raises E511 with the number of the first invalid line."""
    if len(content) > _MOST_BYTES:
        raise errors.questions_invalid(name, f"it has more than {_MOST_BYTES:,} bytes")
    questions: dict[str, ExpectedAnswer] = {}
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            expected = parse_json(line, ExpectedAnswer)
        except (msgspec.DecodeError, RecursionError) as fault:
            raise errors.questions_invalid(where, str(fault)) from fault
        if not expected.question.strip():
            raise errors.questions_invalid(where, "the question is empty")
        if expected.no_answer == bool(expected.documents or expected.phrases):
            raise errors.questions_invalid(where, "give documents or phrases, or else no_answer")
        if expected.question.strip() in questions:
            raise errors.questions_invalid(where, "the question is on an earlier line too")
        questions[expected.question.strip()] = expected
    if not questions:
        raise errors.questions_invalid(name, "it has no questions")
    return list(questions.values())


def find_questions(settings: Settings, places: Iterable[str | None], given: Path | None) -> list[ExpectedAnswer]:
    """Return the questions of the given file, else of the first place that has some. Raises E511, E512.

    `places`: folders and packages; None for the folders that are synced.
    """
    if given is not None:
        if not given.is_file():
            raise errors.no_questions(str(given))
        with files.storage_errors():
            return read_questions(given.read_bytes(), str(given))
    looked_in = []
    for place in places:
        synced = [settings.kb.sources_dir, *(named.path for named in settings.kb.collections.values() if named.path)]
        for folder in [place] if place is not None else synced:
            path = files.expand_path(folder)
            looked_in.append(str(folder))
            with files.storage_errors():
                if path.is_file():
                    content = archive.read_entry(path, QUESTIONS_NAME, settings.sources)
                else:
                    file = path / QUESTIONS_NAME
                    content = file.read_bytes() if file.is_file() else None
            if content is not None:
                return read_questions(content, f"{folder}/{QUESTIONS_NAME}")
    raise errors.no_questions(", ".join(dict.fromkeys(looked_in)))


@contextlib.contextmanager
def open_folder(path: Path, settings: Settings) -> "Iterator[KnowledgeBase]":
    """Open a folder or package as a KB. Without an index, its files are stored in a temporary KB first.

    Raises E003, E009, E012, E207.
    """
    with contextlib.ExitStack() as stack:
        folder = path
        if path.is_file():
            with files.storage_errors():
                archive.refuse_unsafe(path, settings.sources)
                content = archive.read_entry(path, INDEX_MANIFEST, settings.sources)
            if content is not None:
                yield stack.enter_context(open_package(path, settings))
                return
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="pair-package-"))
            folder = files.resolve(Path(temporary)) / "package"
            archive.unpack(path, folder, settings.sources, shown=str(path))
        kb = stack.enter_context(temporary_kb(settings))
        own = {MANIFEST_NAME} if path.is_file() else set[str]()
        documents = (
            dataclasses.replace(document, id=name)
            for document in read_documents([str(folder)], lambda path, reason: None)
            if (name := Path(document.id).relative_to(folder).as_posix()) not in own
            and not name.startswith(f"{INDEX_FOLDER}/")
        )
        kb.upsert(documents)
        yield kb


@contextlib.contextmanager
def open_side(settings: Settings, place: str | None, kb_id: str, at: str | None = None) -> "Iterator[KnowledgeBase]":
    """Open a folder or package, or else a version of a KB."""
    if place is not None:
        with open_folder(Path(place), settings) as kb:
            yield kb
    else:
        with open_kb(kb_id, settings=settings, at=at) as kb:
            yield kb


def ask_questions(kb: "KnowledgeBase", questions: Sequence[str]) -> list[GivenAnswer]:
    """Return the answers of a KB without a model. Raises E201 and the errors of a search."""
    kb.version()
    librarian = KbLibrarian(kb.collection)

    async def ask_all() -> list[GivenAnswer]:
        return [_read_response(await librarian(question)) for question in questions]

    return asyncio.run(ask_all())


def _read_response(response: Any) -> GivenAnswer:
    if response.error is not None:
        error = response.error
        raise errors.PairError(str(error.details.get("code", error.code)), error.message)
    documents = dict.fromkeys(source.provenance.document_id for source in response.sources)
    return GivenAnswer(
        response.metadata[OUTCOME_KEY], response.confidence or 0.0, tuple(documents), response.answer or ""
    )


def check_answers(kb: "KnowledgeBase", questions: Sequence[ExpectedAnswer]) -> list[TestedQuestion]:
    """Ask every question, and compare each answer with its requirements."""
    given = ask_questions(kb, [expected.question for expected in questions])
    return [
        TestedQuestion(expected.question, answer, tuple(find_faults(expected, answer)))
        for expected, answer in zip(questions, given, strict=True)
    ]


def find_faults(expected: ExpectedAnswer, given: GivenAnswer) -> Iterator[str]:
    if expected.no_answer:
        if given.outcome == "answer":
            yield f"answered from {given.documents[0]} (confidence {given.confidence:.2f}), but no answer is expected"
    elif given.outcome == "nothing":
        yield "no answer"
    else:
        if expected.documents and not {*expected.documents} & {*given.documents}:
            yield f"cites {', '.join(given.documents)}, not {' or '.join(expected.documents)}"
        text = _fold(given.text)
        yield from (
            f"does not contain {phrase!r:.{_MOST_SHOWN}}" for phrase in expected.phrases if _fold(phrase) not in text
        )


def _fold(text: str) -> str:
    """Return the text without quotation marks of Markdown, in one case and with single spaces."""
    lines = (line.removeprefix(">") for line in text.splitlines())
    return " ".join(" ".join(lines).replace("`", "").replace("*", "").split()).casefold()


def compare_answers(
    questions: Sequence[str], before: Sequence[GivenAnswer], after: Sequence[GivenAnswer]
) -> list[ChangedAnswer]:
    """Return the questions that are answered from another document, no longer, newly, or with less confidence."""
    changed = []
    for question, old, new in zip(questions, before, after, strict=True):
        change: AnswerChange | None = None
        if (old.outcome == "answer") != (new.outcome == "answer"):
            change = "answered" if new.outcome == "answer" else "unanswered"
        elif old.documents[:1] != new.documents[:1] and "nothing" not in {old.outcome, new.outcome}:
            change = "other_document"
        elif old.confidence - new.confidence >= _LOST_CONFIDENCE:
            change = "less_confident"
        if change is not None:
            changed.append(ChangedAnswer(question, change, old, new))
    return changed
