"""Chunks that are stored, each with the context that it was indexed with: the text and the places alone do not tell."""

from collections.abc import Sequence
from dataclasses import replace

from pair.engine.format.columns import RowText, count_terms
from pair.engine.settings import EngineSettings
from pair.engine.write.chunking import cut_again
from pair.engine.write.text_splitter import Range
from pair.values import Chunk


def stored_chunks(
    text: str, title: str, places: Sequence[Range], lengths: Sequence[int] | None, policy: EngineSettings
) -> tuple[Chunk, ...]:
    """`lengths`: of these chunks, in words, as the keyword index counts them; None when there is no index to ask.

    A document may have been stored under other settings than today's: one chunk that has a context tells.
    """
    if lengths is None:
        return cut_again(text, places, policy.chunk_bytes, policy.chunker)
    chunks = cut_again(text, places, policy.chunk_bytes, "structure")
    telling = next((number for number, chunk in enumerate(chunks) if chunk.context), None)
    if telling is None:
        return chunks
    chunk = chunks[telling]
    indexed = count_terms([RowText(chunk.text, title, chunk.context)])
    if int(indexed.lengths[0]) == int(lengths[telling]):
        return chunks
    return tuple(replace(each, context="") for each in chunks)
