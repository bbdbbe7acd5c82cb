"""Resources: knowledge bases as lists of documents, and documents as text, by their addresses."""

from dataclasses import dataclass

import pydantic_core

from pair.app.mcp import rules
from pair.app.mcp.contract import Library

JSON = "application/json"
_TEXT = "text/plain"
_MARKDOWN = "text/markdown"
_MARKDOWN_NAMES = (".md", ".markdown")
_KBS_AT_A_TIME = 100
_DOCUMENTS_AT_A_TIME = 200
_NOTE_BYTES = 400


@dataclass(frozen=True)
class ListedResource:
    uri: str
    name: str
    description: str


@dataclass(frozen=True)
class ResourcePart:
    uri: str
    media_type: str
    text: str


async def listed(library: Library, after: str) -> tuple[list[ListedResource], str | None]:
    """KBs by name, and what to go on behind."""
    known = [each for each in await library.kbs() if each["kb_id"] > after]
    shown = [
        ListedResource(str(rules.Address(each["kb_id"])), each["kb_id"], f"{each['documents']} documents, as a list")
        for each in known[:_KBS_AT_A_TIME]
    ]
    return shown, shown[-1].name if len(known) > len(shown) else None


async def read(library: Library, uri: str) -> list[ResourcePart]:
    """Raises E201, E214, E601, E603."""
    address = rules.parsed(uri)
    library.named(address.kb)
    most_bytes = library.result_tokens * rules.BYTES_PER_TOKEN - _NOTE_BYTES
    if not address.document_id:
        return [await _documents(library, uri, address, most_bytes)]
    found = await library.document(address.kb, address.document_id, address.at)
    text = rules.cut(found.text[address.offset :], most_bytes)
    end = address.offset + len(text)
    is_markdown = found.id.lower().endswith(_MARKDOWN_NAMES)
    parts = [ResourcePart(uri, _MARKDOWN if is_markdown else _TEXT, text)]
    if end < len(found.text):
        following = str(rules.Address(address.kb, found.id, end, at=address.at))
        told = f"Characters {address.offset} to {end} of {len(found.text)}. The rest is at {following}"
        parts.append(ResourcePart(following, _TEXT, told))
    return parts


async def _documents(library: Library, uri: str, address: rules.Address, most_bytes: int) -> ResourcePart:
    found = await library.documents(address.kb, address.after, _DOCUMENTS_AT_A_TIME)
    entries = [{"uri": str(rules.Address(address.kb, each.id)), "title": each.title or each.id} for each in found]
    shown = rules.those_that_fit(entries, most_bytes)
    is_all = len(shown) == len(found) < _DOCUMENTS_AT_A_TIME
    following = None if is_all or not shown else str(rules.Address(address.kb, after=found[len(shown) - 1].id))
    value = {"kb": address.kb, "documents": shown, "next": following}
    return ResourcePart(uri, JSON, pydantic_core.to_json(value).decode())
