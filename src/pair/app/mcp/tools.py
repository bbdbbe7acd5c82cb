"""The tools: what they take, what they give, and how much of it.

Invariants
    Results fit into `server.mcp_result_tokens`; a note says what was cut, and how to get the rest.
"""

import dataclasses
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, TypeVar
from urllib.parse import parse_qsl, quote, unquote

import pydantic_core
from annotated_types import Ge, Le, MaxLen, MinLen
from mcp.server.mcpserver import Resolve
from mcp_types import CallToolResult
from pydantic import FailFast, Field
from typing_extensions import TypedDict

from pair import errors
from pair.app.kb_access import IngestRun, KbAccess, strict
from pair.kb.open import DEFAULT_KB
from pair.librarians.citations import RETRIEVAL_KEY
from pair.librarians.contract import Citation
from pair.values import DEFAULT_MODE, Document, Hit, SearchMode

Json = dict[str, Any]
_Value = TypeVar("_Value")

BYTES_PER_TOKEN = 3
"""Tokenizers make fewer tokens of a text than a third of its bytes, whatever its language."""
_SCHEME = "kb://"
_WORD_CHARACTERS = 80
_MOST_TITLE_BYTES = 300
_MOST_URL_BYTES = 2_000
_MOST_MESSAGE_BYTES = 1_000
_MOST_META_BYTES = 16_000
NOTE_BYTES = 400
"""Kept free for a note about the result."""

CALLER: ContextVar[KbAccess] = ContextVar("caller")
"""The caller of the tool call that is under way."""


async def _get_caller() -> KbAccess:
    return CALLER.get()


Caller = Annotated[KbAccess, Resolve(_get_caller)]
Kb = Annotated[str, MaxLen(128), Field(description="See list_kbs")]
Query = Annotated[str, MinLen(1), MaxLen(20_000)]
Id = Annotated[str, MinLen(1), MaxLen(20_000), Field(description="From search, or its id")]
At = Annotated[str, MaxLen(200), Field(description="Older version", coerce_numbers_to_str=True)]


@strict
class DocumentArgument:
    text: Annotated[str, MinLen(1)]
    id: Annotated[str, MaxLen(4096)] = ""
    title: str = ""
    url: str = ""
    metadata: Json = field(default_factory=dict)


class Passage(TypedDict):
    id: str
    title: str
    url: str
    text: str
    start: int


class ScoredPassage(TypedDict):
    id: str
    title: str
    url: str
    text: str
    start: int
    end: int
    score: float


class SearchOutput(TypedDict):
    kb: str
    results: list[ScoredPassage]
    note: NotRequired[str]


class FetchOutput(TypedDict):
    id: str
    title: str
    url: str
    text: str
    metadata: Json
    offset: int
    total: int
    next_offset: int | None
    note: NotRequired[str]


class AskOutput(TypedDict):
    answer: str
    confidence: float | None
    partial: bool
    sources: list[Passage]
    note: NotRequired[str]


class KbSize(TypedDict):
    kb: str
    documents: int
    chunks: int
    version: int


class KbListOutput(TypedDict):
    kbs: list[KbSize]
    next: str | None


class IngestOutput(TypedDict):
    kb: str
    stored: int
    unchanged: int
    ids: list[str]
    note: NotRequired[str]


class DeleteOutput(TypedDict):
    kb: str
    deleted: int


class KbToolError(Exception):
    """There is no result: why, and what to do."""

    def __init__(self, error: Json) -> None:
        super().__init__(error["code"])
        self.error = {
            key: cut(value, _MOST_MESSAGE_BYTES) if isinstance(value, str) else value for key, value in error.items()
        }


def most_bytes(access: KbAccess) -> int:
    """Return how long a result may be, without its note."""
    return access.service.settings.server.mcp_result_tokens * BYTES_PER_TOKEN - NOTE_BYTES


def _use_kb(access: KbAccess, kb: str) -> str:
    """A caller who may use one KB only need not name it. Raises E603."""
    own = access.principal.kbs
    return access.use_kb(kb or (next(iter(own)) if own is not None and len(own) == 1 else DEFAULT_KB))


async def search(
    access: Caller,
    query: Query,
    kb: Kb = "",
    limit: Annotated[int, Ge(1), Le(50)] = 8,
    mode: SearchMode = DEFAULT_MODE,
    filter: Annotated[Json, Field(description='On metadata: {"year": {"gte": 2020}}')] = {},  # noqa: B006 - is only read
    at: At = "",
) -> SearchOutput:
    """Find passages by words and meaning, best first."""
    kb = _use_kb(access, kb)
    hits, _, _ = await access.search(
        kb, at or None, lambda opened: opened.search(query, limit=limit, mode=mode, filter=filter or None)
    )
    version = str(hits.manifest_version) if at else ""
    value: SearchOutput = {"kb": kb, "results": []}
    left = most_bytes(access) - json_size(value)
    frames = take_fitting([_describe_hit(kb, hit, version) for hit in hits], left)
    shown = list(hits)[: len(frames)]
    texts = cut_evenly([hit.text for hit in shown], left - json_size(frames))
    value["results"] = [{**frame, "text": text} for frame, text in zip(frames, texts, strict=True)]
    notes = []
    if hits.partial:
        notes.append("Some of the knowledge base could not be searched.")
    if len(frames) < len(hits):
        notes.append(f"{len(hits) - len(frames)} results left out: ask for fewer.")
    if any(text != hit.text for text, hit in zip(texts, shown, strict=True)):
        notes.append("Passages were cut: fetch with id and offset=start gives the rest.")
    if notes:
        value["note"] = " ".join(notes)
    return value


def _describe_hit(kb: str, hit: Hit, at: str) -> ScoredPassage:
    address = str(Address(kb, hit.document_id, at=at))
    return {
        "id": address,
        "title": cut(hit.title or hit.document_id, _MOST_TITLE_BYTES),
        "url": _choose_url(hit.url, address),
        "text": "",
        "start": hit.start,
        "end": hit.end,
        "score": round(hit.score, 4),
    }


def _choose_url(url: str, address: str) -> str:
    """Cite a document without a URL by its address."""
    return url if url and json_size(url) <= _MOST_URL_BYTES else address


async def fetch(
    access: Caller,
    id: Id,
    kb: Kb = "",
    offset: Annotated[int, Ge(0), Field(description="Character to begin at")] = 0,
) -> FetchOutput:
    """Read a document; a long one in parts, by offset."""
    address = _find_document(access, kb, id)
    offset = offset or address.offset
    document = await access.read_document(address.kb, address.document_id, address.at or None)
    own = str(Address(address.kb, document.id, at=address.at))
    value: FetchOutput = {
        "id": own,
        "title": cut(document.title or document.id, _MOST_TITLE_BYTES),
        "url": _choose_url(document.url, own),
        "text": "",
        "metadata": {},
        "offset": offset,
        "total": len(document.text),
        "next_offset": None,
    }
    most, notes = most_bytes(access), []
    if json_size(document.metadata) <= most // 4:
        value["metadata"] = dict(document.metadata)
    else:
        notes.append("The metadata was too long.")
    value["text"] = cut(document.text[offset:], max(most - json_size(value), NOTE_BYTES))
    end = offset + len(value["text"])
    if end < len(document.text):
        value["next_offset"] = end
        notes.append(f"Characters {offset} to {end} of {len(document.text)}: fetch with offset={end} gives more.")
    elif offset > len(document.text):
        notes.append(f"The text ends at character {len(document.text)}.")
    if notes:
        value["note"] = " ".join(notes)
    return value


def _find_document(access: KbAccess, kb: str, given: str) -> "Address":
    """Raises E601, E603."""
    if not is_address(given):
        return Address(_use_kb(access, kb), given)
    address = Address.parse(given)
    if not address.document_id:
        raise errors.request_invalid("the address of a knowledge base, not of a document")
    return dataclasses.replace(address, kb=_use_kb(access, address.kb))


async def ask(access: Caller, query: Query, kb: Kb = "") -> Annotated[CallToolResult, AskOutput]:
    """Answer a question from the documents, with sources: [1] is the first."""
    needs_kb = bool(kb) or not access.principal.sees_all
    kb = _use_kb(access, kb)
    run = await access.prepare_ask(query, kb if needs_kb else None)
    response = await run.answer()
    error, answer = response.error, response.answer or ""
    if error is not None and not answer:
        details = {"code": error.details.get("code", error.code), "message": error.message}
        suggestion = {"suggestion": error.suggestion} if error.suggestion else {}
        raise KbToolError({**details, "recoverable": bool(error.recoverable), **suggestion})
    most = most_bytes(access)
    value: Json = {
        "answer": cut(answer, most // 2),
        "confidence": response.confidence,
        "partial": response.partial or error is not None,
        "sources": [],
    }
    left = most - json_size(value)
    frames = take_fitting([_describe_source(source) for source in response.sources], left)
    shown = response.sources[: len(frames)]
    quotes = cut_evenly([source.quote for source in shown], left - json_size(frames))
    value["sources"] = [{**frame, "text": quote} for frame, quote in zip(frames, quotes, strict=True)]
    notes = []
    if error is not None:
        notes.append(cut(error.message, NOTE_BYTES // 2))
    if value["answer"] != answer:
        notes.append("The answer was cut: ask for less.")
    if len(frames) < len(response.sources) or quotes != [source.quote for source in shown]:
        notes.append("Sources were cut: fetch has them whole.")
    if notes:
        value["note"] = " ".join(notes)
    # How the passages were found goes beside the result: the model need not read it.
    retrieval = response.to_json().get("metadata", {}).get(RETRIEVAL_KEY)
    has_meta = retrieval and json_size(retrieval) <= _MOST_META_BYTES
    meta = {f"pair/{RETRIEVAL_KEY}": retrieval} if has_meta else None
    return CallToolResult(content=[], structured_content=value, _meta=meta)


def _describe_source(source: Citation) -> Passage:
    origin = source.provenance
    address = str(Address(origin.kb_id, origin.document_id)) if origin else ""
    return {
        "id": address or cut(source.id, _MOST_URL_BYTES),
        "title": cut(source.name, _MOST_TITLE_BYTES),
        "url": _choose_url(source.url, address),
        "text": "",
        "start": origin.start if origin else 0,
    }


async def list_kbs(
    access: Caller, after: Annotated[str, Field(description="`next` of the last call")] = ""
) -> KbListOutput:
    """List knowledge bases and their sizes."""
    entries: list[KbSize] = [
        {"kb": kb["kb_id"], "documents": kb["documents"], "chunks": kb["chunks"], "version": kb["manifest_version"]}
        for kb in await access.list_kbs()
        if kb["kb_id"] > after
    ]
    shown = take_fitting(entries, most_bytes(access))
    return {"kbs": shown, "next": shown[-1]["kb"] if shown and len(shown) < len(entries) else None}


async def ingest(
    access: Caller, documents: Annotated[list[DocumentArgument], MinLen(1), FailFast()], kb: Kb = ""
) -> IngestOutput:
    """Add documents; one with the same id is replaced."""
    kb = _use_kb(access, kb)
    run = IngestRun(access, kb)
    await run.write([Document(one.id, one.text, one.title, one.url, one.metadata) for one in documents])
    ids = [str(Address(kb, document_id)) for document_id in run.ids]
    shown = take_fitting(ids, most_bytes(access))
    counts = run.counts
    value: IngestOutput = {
        "kb": kb,
        "stored": counts["ingested_docs"],
        "unchanged": counts["unchanged_docs"],
        "ids": shown,
    }
    if len(shown) < len(ids):
        value["note"] = f"{len(ids) - len(shown)} more ids."
    return value


async def delete(access: Caller, id: Id, kb: Kb = "") -> DeleteOutput:
    """Delete a document."""
    address = _find_document(access, kb, id)
    if address.at:
        raise errors.request_invalid("nothing is deleted from an earlier version")
    report = await access.delete(address.kb, address.document_id)
    return {"kb": address.kb, "deleted": report["deleted"]}


# ── what fits into a result ───────────────────────────────────────────────────────────────────────────


def json_size(value: Any) -> int:
    """Return the bytes of a value as JSON."""
    return len(pydantic_core.to_json(value))


def cut(text: str, most_bytes: int) -> str:
    """Return the longest beginning that fits as JSON, up to a space if there is one nearby."""
    if len(text) <= most_bytes and json_size(text) <= most_bytes:
        return text
    fits, too_long = 0, min(len(text), most_bytes) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if json_size(text[:middle]) <= most_bytes:
            fits = middle
        else:
            too_long = middle
    space = text.rfind(" ", max(1, fits - _WORD_CHARACTERS), fits)
    return text[: space if space > 0 else fits]


def cut_evenly(texts: Sequence[str], most_bytes: int) -> list[str]:
    """Fit texts into so many bytes: short ones whole, long ones cut to the same length."""
    sizes = [json_size(text) for text in texts]
    left, share = most_bytes, most_bytes
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            break
        left -= size
    return [text if size <= share else cut(text, share) for text, size in zip(texts, sizes, strict=True)]


def take_fitting(values: Sequence[_Value], most_bytes: int) -> list[_Value]:
    """Return the first values, as many as fit as a list."""
    kept: list[_Value] = []
    size = 2
    for value in values:
        size += json_size(value) + 1
        if size > most_bytes:
            break
        kept.append(value)
    return kept


@dataclass(frozen=True)
class Address:
    """`kb://handbook/guides%2Fdeploy.md?offset=9000`, or `kb://handbook?after=clocks.md` for a list of documents.

    `at`: the version that a document is of.
    """

    kb: str
    document_id: str = ""
    offset: int = 0
    after: str = ""
    at: str = ""

    def __str__(self) -> str:
        base = f"{_SCHEME}{quote(self.kb, safe='')}"
        if self.document_id:
            base += f"/{quote(self.document_id, safe='')}"
        named = {"at": quote(self.at, safe=""), "offset": self.offset, "after": quote(self.after, safe="")}
        more = "&".join(f"{name}={value}" for name, value in named.items() if value)
        return f"{base}?{more}" if more else base

    @staticmethod
    def parse(text: str) -> "Address":
        """Raises E601."""
        place, _, more = text.removeprefix(_SCHEME).partition("?")
        kb, _, document_id = place.partition("/")
        given = dict(parse_qsl(more, keep_blank_values=True))
        offset = given.get("offset", "0")
        is_offset = offset.isascii() and offset.isdigit() and len(offset) <= 18
        known = {"offset", "after"} | ({"at"} if document_id else set())
        if not is_address(text) or not kb or given.keys() - known or not is_offset:
            raise errors.request_invalid(
                "not the address of a document", hints=["kb://KB/ID, with ID percent-encoded, as search gives it"]
            )
        return Address(unquote(kb), unquote(document_id), int(offset), given.get("after", ""), given.get("at", ""))


def is_address(text: str) -> bool:
    return text.startswith(_SCHEME)
