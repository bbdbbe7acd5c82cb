"""A project folder with sources, its index and its store."""

from pathlib import Path
from typing import Any

from pair.ai.summariser import ExtractiveSummariser
from pair.clock import SystemClock
from pair.engine.settings import EngineSettings
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb, open_reader
from pair.kb.sync import SilentSyncObserver, SyncService
from pair.settings import Settings
from pair.sync.pages import WebPages
from pair.sync.report import SyncReport
from pair.sync.rules import SyncSettings
from pair.sync.run import SyncDependencies, SyncRun
from support.command import file_states


class SyncedProject:
    def __init__(self, folder: Path, **engine: Any) -> None:
        """Create the project. `engine`: engine settings in addition to those of every test."""
        self.folder = folder
        self.sources = folder / "knowledge"
        self.store = folder / "store"
        self.settings = Settings(
            kb=SyncSettings(
                sources_dir=str(self.sources),
                links_file_path=str(folder / "links.txt"),
                index_path=str(folder / "index.txt"),
                index_cache_path=str(folder / "index-cache.json"),
                web_fetch_cache_dir=str(folder / "web-cache"),
            ),
            engine=EngineSettings(
                store=str(self.store),
                cache_dir=str(folder / "cache"),
                embedder="ngram",
                embedding_dimension=64,
                **engine,
            ),
        )

    def sync(self) -> SyncReport:
        return SyncService(self.settings).sync()

    def sync_index(self) -> None:
        """Sync the index without updating the KB."""
        paths = SyncService(self.settings).places
        clock = SystemClock()
        pages = WebPages(self.settings.kb, paths.links_files, clock, open_reader())
        parts = SyncDependencies(ExtractiveSummariser, pages, open_reader(), clock, SilentSyncObserver())
        SyncRun(self.settings.kb, paths, parts).run()

    def open(self, **more: Any) -> KnowledgeBase:
        return open_kb(settings=self.settings, sources=SyncService(self.settings), **more)

    def stored(self) -> dict[str, str]:
        with self.open() as kb:
            return {each.id: each.text for each in kb.documents(limit=1000)}

    def everything(self) -> dict[str, tuple[bytes, int]]:
        return file_states(self.folder, without=".lock")
