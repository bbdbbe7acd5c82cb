"""The MCP tools: their arguments, their results, and the size of the results.

Invariants
    A result fits into `server.mcp_result_tokens`. If something was cut, a note says how to get the rest.
"""

import dataclasses
from collections.abc import Mapping, Sequence
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
from pair.kb.feedback import MOST_QUERY_CHARACTERS, Rating
from pair.kb.kb import KnowledgeBase
from pair.kb.open import DEFAULT_KB
from pair.librarians.citations import RETRIEVAL_KEY
from pair.librarians.contract import Citation
from pair.values import DEFAULT_MODE, Document, Hit, Hits, SearchMode

Json = dict[str, Any]
_Value = TypeVar("_Value")
_Passage = TypeVar("_Passage", bound=Mapping[str, Any])

BYTES_PER_TOKEN = 3
"""Bytes to count for a token. Tokens of every language have more on average, so results stay within the limit."""
_SCHEME = "kb://"
_WORD_CHARACTERS = 80
_MOST_TITLE_BYTES = 300
_MOST_URL_BYTES = 2_000
_MOST_MESSAGE_BYTES = 1_000
_MOST_META_BYTES = 16_000
_MOST_KBS = 16
NOTE_BYTES = 400
"""Bytes reserved for the note of a result."""

CALLER: ContextVar[KbAccess] = ContextVar("caller")
"""The caller of the current tool call."""


async def _get_caller() -> KbAccess:
    return CALLER.get()


Caller = Annotated[KbAccess, Resolve(_get_caller)]
Kb = Annotated[str, MaxLen(128), Field(description="From list_kbs")]
Query = Annotated[str, MinLen(1), MaxLen(20_000)]
Id = Annotated[str, MinLen(1), MaxLen(20_000), Field(description="From search, or a document id")]
At = Annotated[str, MaxLen(200), Field(description="Older version", coerce_numbers_to_str=True)]


@strict
class DocumentArgument:
    text: Annotated[str, MinLen(1)]
    id: Annotated[str, MaxLen(4096)] = ""
    title: str = ""
    url: str = ""
    metadata: Json = field(default_factory=dict)


# Results always have these fields. `total=False` keeps them out of `required`, which would cost tokens.
class Passage(TypedDict, total=False):
    id: str
    title: str
    url: str
    text: str
    start: int


class ScoredPassage(TypedDict, total=False):
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
    outcome: NotRequired[Annotated[str, Field(description="answer, passages (related) or nothing")]]
    confidence: float | None
    partial: bool
    sources: list[Passage]
    note: NotRequired[str]


class KbSize(TypedDict, total=False):
    kb: str
    documents: int
    chunks: int
    version: int


class KbListOutput(TypedDict):
    kbs: list[KbSize]
    next: str | None


class FeedbackOutput(TypedDict):
    stored: int


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
    """The error of a failed tool call, with short texts."""

    def __init__(self, error: Json) -> None:
        super().__init__(error["code"])
        self.error = {
            key: cut(value, _MOST_MESSAGE_BYTES) if isinstance(value, str) else value for key, value in error.items()
        }


def most_bytes(access: KbAccess) -> int:
    """Return the maximum size of a result without its note."""
    return access.service.settings.server.mcp_result_tokens * BYTES_PER_TOKEN - NOTE_BYTES


def _use_kb(access: KbAccess, kb: str) -> str:
    """Return the KB of a call after checking access. A caller with one KB need not name it. Raises E603."""
    own = access.principal.kbs
    return access.use_kb(kb or (next(iter(own)) if own is not None and len(own) == 1 else DEFAULT_KB))


async def search(
    access: Caller,
    query: Query,
    kb: Annotated[str | list[str], MaxLen(128)] = "",
    limit: Annotated[int, Ge(1), Le(50)] = 8,
    mode: SearchMode = DEFAULT_MODE,
    filter: Annotated[Json, Field(description='On metadata: {"year": {"gte": 2020}}, ne, $or')] = {},  # noqa: B006 - is only read
    at: At = "",
) -> SearchOutput:
    """Search documents by words and meaning, to find facts and their sources. kb may be a list."""

    def find(opened: KnowledgeBase) -> Hits:
        return opened.search(query, limit=limit, mode=mode, filter=filter or None)

    if isinstance(kb, list) and len(kb) != 1:
        if at or not 0 < len(kb) <= _MOST_KBS:
            raise errors.request_invalid(f"several knowledge bases are at most {_MOST_KBS}, without at")
        kbs = access.use_kbs(kb)
        kb = ", ".join(kbs)
        hits, _, _ = await access.search_several(kbs, limit, find)
    else:
        kb = _use_kb(access, kb if isinstance(kb, str) else kb[0])
        hits, _, _ = await access.search(kb, at or None, find)
    version = str(hits.manifest_version) if at else ""
    value: SearchOutput = {"kb": kb, "results": []}
    described = [_describe_hit(hit.kb_id or kb, hit, version) for hit in hits]
    left = most_bytes(access) - json_size(value)
    value["results"], is_whole = _fit_passages(described, [hit.text for hit in hits], left)
    dropped = len(hits) - len(value["results"])
    _add_note(
        value,
        "Some of the knowledge base could not be searched." if hits.partial else "",
        f"{dropped} results left out: use a smaller limit." if dropped else "",
        "" if is_whole else "Passages were cut: fetch with id and offset=start returns the rest.",
    )
    return value


def _describe_hit(kb: str, hit: Hit, at: str) -> ScoredPassage:
    address = str(Address(kb, hit.document_id, at=at))
    passage = _describe_passage(address, hit.title or hit.document_id, hit.url, hit.start)
    return {**passage, "end": hit.end, "score": round(hit.score, 4)}


def _describe_passage(address: str, title: str, url: str, start: int) -> Passage:
    """Return a passage without its text."""
    title = cut(title, _MOST_TITLE_BYTES)
    return {"id": address, "title": title, "url": _choose_url(url, address), "text": "", "start": start}


def _choose_url(url: str, address: str) -> str:
    """Return the URL of a document, or its address if it has none."""
    return url if url and json_size(url) <= _MOST_URL_BYTES else address


async def fetch(
    access: Caller,
    id: Id,
    kb: Kb = "",
    offset: Annotated[int, Ge(0), Field(description="Character to start at")] = 0,
) -> FetchOutput:
    """Read a document, for more than a passage shows. For long texts, repeat with next_offset."""
    address = _find_document(access, kb, id)
    offset = offset or address.offset
    document = await access.read_document(address.kb, address.document_id, address.at or None)
    own, total, most = str(Address(address.kb, document.id, at=address.at)), len(document.text), most_bytes(access)
    has_metadata = json_size(document.metadata) <= most // 4
    value: FetchOutput = {
        "id": own,
        "title": cut(document.title or document.id, _MOST_TITLE_BYTES),
        "url": _choose_url(document.url, own),
        "text": "",
        "metadata": dict(document.metadata) if has_metadata else {},
        "offset": offset,
        "total": total,
        "next_offset": None,
    }
    value["text"] = cut(document.text[offset:], max(most - json_size(value), NOTE_BYTES))
    end = offset + len(value["text"])
    value["next_offset"] = end if end < total else None
    _add_note(
        value,
        "" if has_metadata else "The metadata was too long.",
        f"Characters {offset} to {end} of {total}: fetch with offset={end} returns more." if end < total else "",
        f"The text ends at character {total}." if offset > total else "",
    )
    return value


def _find_document(access: KbAccess, kb: str, given: str) -> "Address":
    """Return the address of a document by address or id. Raises E601, E603."""
    if not given.startswith(_SCHEME):
        return Address(_use_kb(access, kb), given)
    address = Address.parse(given)
    if not address.document_id:
        raise errors.request_invalid("this is the address of a knowledge base, not of a document")
    return dataclasses.replace(address, kb=_use_kb(access, address.kb))


async def ask(access: Caller, query: Query, kb: Kb = "", at: At = "") -> Annotated[CallToolResult, AskOutput]:
    """Answer a question from the documents. Returns the answer and its sources: [1] is the first."""
    needs_kb = bool(kb or at) or not access.principal.sees_all
    kb = _use_kb(access, kb)
    run = await access.prepare_ask(query, kb if needs_kb else None, at or None)
    response = await run.answer()
    error, answer, outcome = response.error, response.answer or "", response.metadata.get("outcome")
    if error is not None and not answer:
        details = {"code": error.details.get("code", error.code), "message": error.message}
        suggestion = {"suggestion": error.suggestion} if error.suggestion else {}
        raise KbToolError({**details, "recoverable": bool(error.recoverable), **suggestion})
    most = most_bytes(access)
    value: Json = {
        "answer": cut(answer, most // 2),
        **({"outcome": cut(str(outcome), _MOST_TITLE_BYTES)} if outcome else {}),
        "confidence": response.confidence,
        "partial": response.partial or error is not None,
        "sources": [],
    }
    described = [_describe_source(source, is_past=bool(at)) for source in response.sources]
    quotes = [source.quote for source in response.sources]
    value["sources"], is_whole = _fit_passages(described, quotes, most - json_size(value))
    is_whole = is_whole and len(value["sources"]) == len(quotes)
    _add_note(
        value,
        cut(error.message, NOTE_BYTES // 2) if error is not None else "",
        "The answer was cut: ask for less." if value["answer"] != answer else "",
        "" if is_whole else "Sources were cut: fetch returns them whole.",
    )
    # The record of the retrieval goes beside the result, because the model need not read it.
    retrieval = response.to_json().get("metadata", {}).get(RETRIEVAL_KEY)
    has_meta = retrieval and json_size(retrieval) <= _MOST_META_BYTES
    meta = {f"pair/{RETRIEVAL_KEY}": retrieval} if has_meta else None
    return CallToolResult(content=[], structured_content=value, _meta=meta)


def _describe_source(source: Citation, *, is_past: bool) -> Passage:
    origin = source.provenance
    if origin is not None:
        address = str(Address(origin.kb_id, origin.document_id, at=str(origin.manifest_version) if is_past else ""))
        return _describe_passage(address, source.name, source.url, origin.start)
    passage = _describe_passage("", source.name, source.url, 0)
    return {**passage, "id": cut(source.id, _MOST_URL_BYTES)}


async def list_kbs(
    access: Caller, after: Annotated[str, Field(description="`next` of the last call")] = ""
) -> KbListOutput:
    """List the knowledge bases and their sizes."""
    entries: list[KbSize] = [
        {"kb": kb["kb_id"], "documents": kb["documents"], "chunks": kb["chunks"], "version": kb["manifest_version"]}
        for kb in await access.list_kbs()
        if kb["kb_id"] > after
    ]
    shown = take_fitting(entries, most_bytes(access))
    return {"kbs": shown, "next": shown[-1]["kb"] if shown and len(shown) < len(entries) else None}


async def feedback(
    access: Caller,
    query: Annotated[str, MinLen(1), MaxLen(MOST_QUERY_CHARACTERS)],
    rating: Rating,
    ids: Annotated[list[str], MinLen(1), MaxLen(50)],
) -> FeedbackOutput:
    """Record whether documents (ids from search) answered a query, when the user says so."""
    addresses = [_find_document(access, "", each) for each in ids]
    for name in dict.fromkeys(address.kb for address in addresses):
        documents = [address.document_id for address in addresses if address.kb == name]
        await access.give_feedback(name, query, rating, documents)
    return {"stored": len(ids)}


async def ingest(
    access: Caller, documents: Annotated[list[DocumentArgument], MinLen(1), FailFast()], kb: Kb = ""
) -> IngestOutput:
    """Store documents, or replace those with the same id."""
    kb = _use_kb(access, kb)
    run = IngestRun(access, kb)
    await run.write([Document(one.id, one.text, one.title, one.url, one.metadata) for one in documents])
    ids = [str(Address(kb, document_id)) for document_id in run.ids]
    shown, counts = take_fitting(ids, most_bytes(access)), run.counts
    value: IngestOutput = {
        "kb": kb,
        "stored": counts["ingested_docs"],
        "unchanged": counts["unchanged_docs"],
        "ids": shown,
    }
    _add_note(value, f"{len(ids) - len(shown)} more ids." if len(shown) < len(ids) else "")
    return value


async def delete(access: Caller, id: Id, kb: Kb = "") -> DeleteOutput:
    """Delete a document."""
    address = _find_document(access, kb, id)
    if address.at:
        raise errors.request_invalid("earlier versions cannot be changed")
    report = await access.delete(address.kb, address.document_id)
    return {"kb": address.kb, "deleted": report["deleted"]}


# ── the size of results ───────────────────────────────────────────────────────────────────────────────


def _fit_passages(passages: Sequence[_Passage], texts: Sequence[str], most_bytes: int) -> tuple[list[Any], bool]:
    """Return the first passages that fit, with their texts, and whether all of these texts are whole."""
    kept = take_fitting(passages, most_bytes)
    whole = list(texts[: len(kept)])
    fitting = cut_evenly(whole, most_bytes - json_size(kept))
    return [{**passage, "text": text} for passage, text in zip(kept, fitting, strict=True)], fitting == whole


def _add_note(value: Any, *notes: str) -> None:
    """Add the notes that are not empty to a result."""
    note = " ".join(filter(None, notes))
    if note:
        value["note"] = note


def json_size(value: Any) -> int:
    """Return the size of a value as JSON, in bytes."""
    return len(pydantic_core.to_json(value))


def cut(text: str, most_bytes: int) -> str:
    """Return the longest beginning that fits as JSON. Prefer to cut at a space."""
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
    """Fit texts into a size: keep short texts whole and cut long ones to the same length."""
    sizes = [json_size(text) for text in texts]
    left, share = most_bytes, most_bytes
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            break
        left -= size
    return [text if size <= share else cut(text, share) for text, size in zip(texts, sizes, strict=True)]


def take_fitting(values: Sequence[_Value], most_bytes: int) -> list[_Value]:
    """Return the first values that fit as a JSON list."""
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
    """The URI of a document or of a list of documents.

    `kb://handbook/guides%2Fdeploy.md?offset=9000` is a document, `kb://handbook?after=clocks.md` a list.
    """

    kb: str
    document_id: str = ""
    offset: int = 0
    after: str = ""
    at: str = ""
    """The version of the document; "" for the current one."""

    def __str__(self) -> str:
        base = f"{_SCHEME}{quote(self.kb, safe='')}"
        if self.document_id:
            base += f"/{quote(self.document_id, safe='')}"
        named = {"at": quote(self.at, safe=""), "offset": self.offset, "after": quote(self.after, safe="")}
        more = "&".join(f"{name}={value}" for name, value in named.items() if value)
        return f"{base}?{more}" if more else base

    @staticmethod
    def parse(text: str) -> "Address":
        """Parse a URI. Raises E601."""
        place, _, more = text.removeprefix(_SCHEME).partition("?")
        kb, _, document_id = place.partition("/")
        given = dict(parse_qsl(more, keep_blank_values=True))
        offset = given.get("offset", "0")
        is_offset = offset.isascii() and offset.isdigit() and len(offset) <= 18
        if not text.startswith(_SCHEME) or not kb or given.keys() - {"offset", "after", "at"} or not is_offset:
            hint = "Use an id that search returns: kb://KB/ID, with ID percent-encoded"
            raise errors.request_invalid("not the address of a document", hints=[hint])
        return Address(unquote(kb), unquote(document_id), int(offset), given.get("after", ""), given.get("at", ""))
