"""The two homes of a KB in every suite: this process, and a server of `pair serve`."""

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pair
from pair.client import RemoteKnowledgeBase
from pair.kb.kb import KnowledgeBase
from pair.settings import Settings

DIMENSIONS = {"langchain-pair": 6, "llama-index-vector-stores-pair": 3, "pair-haystack": 768}
"""The length of the vectors in the suite of each framework."""
_START_SECONDS = 120


def read_dimension(path: Path) -> int:
    return next(size for name, size in DIMENSIONS.items() if name in path.parts)


@pytest.fixture(scope="module")
def dimension(request: pytest.FixtureRequest) -> int:
    return read_dimension(request.path)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, dimension: int) -> dict[str, str]:
    """Settings as environment variables: vectors come with the documents."""
    folder = tmp_path_factory.mktemp("kbs")
    values = {"STORE": str(folder / "store"), "CACHE_DIR": str(folder / "cache"), "GRAPH": "off"}
    values |= {"EMBEDDER": "given", "EMBEDDING_DIMENSION": str(dimension)}
    return {f"PAIR__ENGINE__{name}": value for name, value in values.items()}


@pytest.fixture(scope="module")
def url(settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running server."""
    folder = tmp_path_factory.mktemp("server")
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR"}}
    more = {"HOME": str(folder), "PAIR__SERVER__LOG_FORMAT": "json", "PAIR__SERVER__PORT": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pair", "serve"],
        cwd=folder,
        env=kept | settings | more | {"PAIR__SERVER__SYNC": "false"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    heard, address = threading.Event(), ""

    def read_log() -> None:
        nonlocal address
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if line.startswith("{") and json.loads(line)["event"] == "serving":
                address = json.loads(line)["address"]
                heard.set()
        heard.set()

    reader = threading.Thread(target=read_log, daemon=True)
    reader.start()
    try:
        assert heard.wait(_START_SECONDS), lines
        assert address, lines
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)
        reader.join(timeout=10)


OpenKb = Callable[[], KnowledgeBase | RemoteKnowledgeBase]


@pytest.fixture(params=["local", "server"])
def open_kb(request: pytest.FixtureRequest, settings: dict[str, str]) -> Iterator[OpenKb]:
    """Opens new, empty KBs: in this process, or on a server."""
    opened: list[KnowledgeBase | RemoteKnowledgeBase] = []

    def open_new() -> KnowledgeBase | RemoteKnowledgeBase:
        name = f"kb-{uuid.uuid4().hex}"
        if request.param == "local":
            kb: KnowledgeBase | RemoteKnowledgeBase = pair.open(name, settings=Settings.load(environment=settings))
        else:
            kb = pair.connect(request.getfixturevalue("url"), kb_id=name)
        opened.append(kb)
        return kb

    yield open_new
    for kb in opened:
        kb.close()


@pytest.fixture
def kb(open_kb: OpenKb) -> KnowledgeBase | RemoteKnowledgeBase:
    return open_kb()
