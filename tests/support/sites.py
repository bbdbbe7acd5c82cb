"""Sites published by the real command, and a browser that searches them."""

# ruff: noqa: RUF001 - texts of other alphabets

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from pair.kb.package_index import open_package
from pair.settings import Settings
from support.command import Workplace, write_files
from support.minisign import Keys, make_keys

HANDBOOK = Path(__file__).parents[2] / "examples" / "handbook"
MORE_PAGES: dict[str, str | bytes] = {
    "zh.md": "# 时钟\n\n网络时间协议让计算机的时钟保持同步。闰秒会让时钟出错。\n",
    "ja.md": "# うるう秒\n\nうるう秒は協定世界時を調整するために挿入される。\n",
    "ar.md": "# الوقت\n\nبروتوكول وقت الشبكة يحافظ على تزامن الساعات في الحواسيب.\n",
    "he.md": "# זמן\n\nפרוטוקול זמן הרשת שומר על סנכרון השעונים במחשבים.\n",
    "code.md": "# Notes\n\nSee `src/clock_sync.py`, parseISO8601Date and v1.2.3 of C++ code; don't use `%y`.\n",
}
SEARCH = """async ([query, limit]) => {
  const { openSite } = await import("./main.js");
  const result = await openSite().search(query, { limit });
  return {
    hits: result.hits.map((hit) => [hit.id, hit.start, hit.end, hit.score]),
    terms: [...result.weights.keys()],
  };
}"""


@dataclass
class PublishedSite:
    workplace: Workplace
    keys: Keys

    @property
    def folder(self) -> Path:
        return self.workplace.folder / "dist" / "site" / "handbook"

    @property
    def about(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "site.json").read_bytes())
        return content

    def publish(self, version: str, *more: str) -> None:
        command = ("publish", "dist", "handbook", "--version", version, "--site", *more)
        self.workplace.pair(*command, "--sign", self.keys.secret).succeeds()

    @contextlib.contextmanager
    def kb(self, version: str) -> Iterator[Any]:
        with open_package(self.workplace.folder / "dist" / f"handbook-{version}.zip", Settings()) as opened:
            yield opened


def publish_handbook(folder: Path) -> PublishedSite:
    workplace = Workplace(folder)
    workplace.environment["PAIR__ENGINE__EMBEDDER"] = "static"
    shutil.copytree(HANDBOOK, workplace.folder / "handbook")
    write_files(workplace.folder / "handbook", MORE_PAGES)
    site = PublishedSite(workplace, make_keys(folder))
    site.publish("1.0.0")
    return site


def wait_until_ready(page: Page) -> None:
    page.locator("body[data-state=ready]").wait_for(state="attached")


def search_in(page: Page, queries: Sequence[str], limit: int = 10) -> list[dict[str, Any]]:
    wait_until_ready(page)
    return [page.evaluate(SEARCH, [query, limit]) for query in queries]


def type_query(page: Page, query: str) -> None:
    """Type a query, and wait until the page shows its results or a problem."""
    page.locator("#q").fill(query)
    page.wait_for_function("text => document.getElementById('hits').dataset.for === text", arg=query)
