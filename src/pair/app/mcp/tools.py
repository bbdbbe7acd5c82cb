"""The tools: what they take, what they give, and how much of it.

Invariants
    Results fit into `server.mcp_result_tokens`; what was cut is told, with how to get the rest.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pair import errors
from pair.app.mcp import rules
from pair.app.mcp.arguments import (
    AskArguments,
    DeleteArguments,
    FetchArguments,
    IngestArguments,
    Json,
    ListArguments,
    SearchArguments,
    read,
    schema_of,
)
from pair.app.mcp.contract import Library, SearchCall
from pair.librarians.citations import RETRIEVAL_KEY
from pair.librarians.contract import Citation, ErrorInfo, Response
from pair.values import Document, Hit

_MOST_TITLE_BYTES = 300
_MOST_URL_BYTES = 2_000
_MOST_MESSAGE_BYTES = 1_000
_MOST_META_BYTES = 16_000
META = "_meta"
"""What is said beside a result."""
_NOTE_BYTES = 400
"""Kept free for what is said about the result."""


@dataclass(frozen=True)
class Refused:
    """There is no result; why, and what to do."""

    error: Json


# ── what they do ───────────────────────────────────────────────────────────────────────────────────


def _budget(library: Library) -> int:
    return library.result_tokens * rules.BYTES_PER_TOKEN - _NOTE_BYTES


async def search(library: Library, asked: SearchArguments) -> Json:
    kb = library.named(asked.kb)
    hits = await library.search(kb, SearchCall(asked.query, asked.limit, asked.mode, asked.filter, asked.at))
    at = str(hits.manifest_version) if asked.at else ""
    value: Json = {"kb": kb, "results": []}
    left = _budget(library) - rules.size_of(value)
    frames = rules.those_that_fit([_frame_of_hit(kb, hit, at) for hit in hits], left)
    shown = list(hits)[: len(frames)]
    texts = rules.cut_evenly([hit.text for hit in shown], left - rules.size_of(frames))
    value["results"] = [{**frame, "text": text} for frame, text in zip(frames, texts, strict=True)]
    notes = []
    if hits.partial:
        notes.append("Some of the knowledge base could not be searched.")
    if len(frames) < len(hits):
        notes.append(f"{len(hits) - len(frames)} results left out: ask for fewer.")
    if any(text != hit.text for text, hit in zip(texts, shown, strict=True)):
        notes.append("Passages were cut: fetch with id and offset=start gives the rest.")
    return _noted(value, notes)


def _frame_of_hit(kb: str, hit: Hit, at: str) -> Json:
    address = str(rules.Address(kb, hit.document_id, at=at))
    return {
        "id": address,
        "title": rules.cut(hit.title or hit.document_id, _MOST_TITLE_BYTES),
        "url": _url(hit.url, address),
        "score": round(hit.score, 4),
        "start": hit.start,
        "end": hit.end,
        "text": "",
    }


def _url(url: str, address: str) -> str:
    """What has none of its own is cited by where it is kept."""
    return url if url and rules.size_of(url) <= _MOST_URL_BYTES else address


async def fetch(library: Library, asked: FetchArguments) -> Json:
    address = _address(library, asked.kb, asked.id)
    offset = asked.offset or address.offset
    found = await library.document(address.kb, address.document_id, address.at)
    own = str(rules.Address(address.kb, found.id, at=address.at))
    value: Json = {
        "id": own,
        "title": rules.cut(found.title or found.id, _MOST_TITLE_BYTES),
        "url": _url(found.url, own),
        "text": "",
        "metadata": {},
        "offset": offset,
        "total": len(found.text),
        "next_offset": None,
    }
    budget, notes = _budget(library), []
    if rules.size_of(found.metadata) <= budget // 4:
        value["metadata"] = dict(found.metadata)
    else:
        notes.append("The metadata was too long.")
    value["text"] = rules.cut(found.text[offset:], max(budget - rules.size_of(value), _NOTE_BYTES))
    end = offset + len(value["text"])
    if end < len(found.text):
        value["next_offset"] = end
        notes.append(f"Characters {offset} to {end} of {len(found.text)}: fetch with offset={end} gives more.")
    elif offset > len(found.text):
        notes.append(f"The text ends at character {len(found.text)}.")
    return _noted(value, notes)


def _address(library: Library, kb: str, given: str) -> rules.Address:
    """Raises E601, E603."""
    if not rules.is_address(given):
        return rules.Address(library.named(kb), given)
    address = rules.parsed(given)
    if not address.document_id:
        raise errors.request_invalid("the address of a knowledge base, not of a document")
    return rules.Address(library.named(address.kb), address.document_id, address.offset, at=address.at)


async def ask(library: Library, asked: AskArguments) -> Json | Refused:
    response = await library.ask(asked.kb, asked.query)
    if response.error is not None and not response.answer:
        return _refused(response.error)
    budget = _budget(library)
    answer = response.answer or ""
    value: Json = {
        "answer": rules.cut(answer, budget // 2),
        "confidence": response.confidence,
        "partial": response.partial or response.error is not None,
        "sources": [],
    }
    left = budget - rules.size_of(value)
    frames = rules.those_that_fit([_frame_of_source(each) for each in response.sources], left)
    shown = response.sources[: len(frames)]
    quotes = rules.cut_evenly([each.quote for each in shown], left - rules.size_of(frames))
    value["sources"] = [{**frame, "text": quote} for frame, quote in zip(frames, quotes, strict=True)]
    notes = []
    if response.error is not None:
        notes.append(rules.cut(response.error.message, _NOTE_BYTES // 2))
    if value["answer"] != answer:
        notes.append("The answer was cut: ask for less.")
    if len(frames) < len(response.sources) or any(a != b.quote for a, b in zip(quotes, shown, strict=True)):
        notes.append("Sources were cut: fetch has them whole.")
    return {**_noted(value, notes), **_about(response)}


def _about(response: Response) -> Json:
    """How the passages were found, for whoever keeps the answer: not for the model, which would read it for nothing."""
    retrieval = response.to_json().get("metadata", {}).get(RETRIEVAL_KEY)
    if not retrieval or rules.size_of(retrieval) > _MOST_META_BYTES:
        return {}
    return {META: {f"pair/{RETRIEVAL_KEY}": retrieval}}


def _refused(error: ErrorInfo) -> Refused:
    told: Json = {
        "code": error.details.get("code", error.code),
        "message": error.message,
        "recoverable": bool(error.recoverable),
    }
    return Refused(_short({**told, "suggestion": error.suggestion} if error.suggestion else told))


def refused(fault: errors.PairError) -> Refused:
    return Refused(_short(fault.to_public_json()["error"]))


def _short(error: Json) -> Json:
    return {key: rules.cut(each, _MOST_MESSAGE_BYTES) if isinstance(each, str) else each for key, each in error.items()}


def _frame_of_source(source: Citation) -> Json:
    origin = source.provenance
    address = str(rules.Address(origin.kb_id, origin.document_id)) if origin else ""
    return {
        "id": address or rules.cut(source.id, _MOST_URL_BYTES),
        "title": rules.cut(source.name, _MOST_TITLE_BYTES),
        "url": _url(source.url, address),
        "start": origin.start if origin else 0,
        "text": "",
    }


async def list_kbs(library: Library, asked: ListArguments) -> Json:
    known = [each for each in await library.kbs() if each["kb_id"] > asked.after]
    entries = [
        {
            "kb": each["kb_id"],
            "documents": each["documents"],
            "chunks": each["chunks"],
            "version": each["manifest_version"],
        }
        for each in known
    ]
    shown = rules.those_that_fit(entries, _budget(library))
    return {"kbs": shown, "next": shown[-1]["kb"] if shown and len(shown) < len(entries) else None}


async def ingest(library: Library, asked: IngestArguments) -> Json:
    kb = library.named(asked.kb)
    documents = [Document(each.id, each.text, each.title, each.url, each.metadata) for each in asked.documents]
    done = await library.ingest(kb, documents)
    ids = [str(rules.Address(kb, each)) for each in done["doc_ids"]]
    shown = rules.those_that_fit(ids, _budget(library))
    value: Json = {"kb": kb, "stored": done["ingested_docs"], "unchanged": done["unchanged_docs"], "ids": shown}
    return _noted(value, [f"{len(ids) - len(shown)} more ids."] if len(shown) < len(ids) else [])


async def delete(library: Library, asked: DeleteArguments) -> Json:
    address = _address(library, asked.kb, asked.id)
    if address.at:
        raise errors.request_invalid("nothing is deleted from an earlier version")
    done = await library.delete(address.kb, address.document_id)
    return {"kb": address.kb, "deleted": done["deleted"]}


def _noted(value: Json, notes: list[str]) -> Json:
    return {**value, "note": " ".join(notes)} if notes else value


# ── what is told about them ────────────────────────────────────────────────────────────────────────

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer"}
_NUMBER: Json = {"type": "number"}


def _object(properties: Json, optional: tuple[str, ...] = ()) -> Json:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _or_null(schema: Json) -> Json:
    return {"type": [schema["type"], "null"]}


_PASSAGE: Json = {"id": _TEXT, "title": _TEXT, "url": _TEXT, "text": _TEXT, "start": _COUNT}


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    arguments: type[Any]
    result: Json
    call: Callable[[Library, Any], Awaitable[Json | Refused]]
    hints: Mapping[str, bool]
    """What it does to the world, by the names that the protocol has for that."""

    @property
    def writes(self) -> bool:
        return not self.hints["readOnlyHint"]

    def input_schema(self) -> Json:
        return schema_of(self.arguments)

    async def answer(self, library: Library, arguments: Json) -> Json | Refused:
        """Raises E601, E603, and what the work raises."""
        if self.writes and not library.may_write:
            raise errors.not_allowed(
                "writing", hints=["pair mcp --allow-write", "server.mcp_write: true, and credentials that may write"]
            )
        return await self.call(library, read(self.arguments, arguments))


_READS = {"readOnlyHint": True, "openWorldHint": False}

TOOLS: tuple[Tool, ...] = (
    Tool(
        "search",
        "Find passages by words and meaning, best first.",
        SearchArguments,
        _object(
            {
                "kb": _TEXT,
                "results": _list(_object({**_PASSAGE, "end": _COUNT, "score": _NUMBER})),
                "note": _TEXT,
            },
            ("note",),
        ),
        search,
        _READS,
    ),
    Tool(
        "fetch",
        "Read a document; a long one in parts, by offset.",
        FetchArguments,
        _object(
            {
                "id": _TEXT,
                "title": _TEXT,
                "url": _TEXT,
                "text": _TEXT,
                "metadata": {"type": "object"},
                "offset": _COUNT,
                "total": _COUNT,
                "next_offset": _or_null(_COUNT),
                "note": _TEXT,
            },
            ("note",),
        ),
        fetch,
        _READS,
    ),
    Tool(
        "ask",
        "Answer a question from the documents, with sources: [1] is the first.",
        AskArguments,
        _object(
            {
                "answer": _TEXT,
                "confidence": _or_null(_NUMBER),
                "partial": {"type": "boolean"},
                "sources": _list(_object(_PASSAGE)),
                "note": _TEXT,
            },
            ("note",),
        ),
        ask,
        {"readOnlyHint": True},
    ),
    Tool(
        "list_kbs",
        "List knowledge bases and their sizes.",
        ListArguments,
        _object(
            {
                "kbs": _list(_object({"kb": _TEXT, "documents": _COUNT, "chunks": _COUNT, "version": _COUNT})),
                "next": _or_null(_TEXT),
            }
        ),
        list_kbs,
        _READS,
    ),
    Tool(
        "ingest",
        "Add documents; one with the same id is replaced.",
        IngestArguments,
        _object({"kb": _TEXT, "stored": _COUNT, "unchanged": _COUNT, "ids": _list(_TEXT), "note": _TEXT}, ("note",)),
        ingest,
        {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False},
    ),
    Tool(
        "delete",
        "Delete a document.",
        DeleteArguments,
        _object({"kb": _TEXT, "deleted": _COUNT}),
        delete,
        {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}


def usable(library: Library) -> list[Tool]:
    """In the same order always."""
    return [tool for tool in TOOLS if library.may_write or not tool.writes]
