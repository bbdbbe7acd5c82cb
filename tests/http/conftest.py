"""Servers that many tests share, because starting one takes longer than a hundred requests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from support.page_viewer import Viewer, chromium
from support.served import BURST, Keyed, Served

HANDBOOK = {
    "deploy.md": "# Deploying\n\nDeploy on Tuesdays. Roll back with the command make rollback.",
    "clocks.md": "# Clocks\n\nThe Network Time Protocol keeps clocks in step. NTP uses port 123.",
    "lunch.md": "# Lunch\n\nLunch is at one. On Fridays there is soup.",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def viewer(browser: Browser, server: Served) -> Viewer:
    """Return a viewer of the module's server."""
    return Viewer(browser, server.url)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server without authentication, with a few documents."""
    with Served(tmp_path_factory.mktemp("plain") / "project", PAIR__ENGINE__INGEST_BATCH_DOCUMENTS="1000") as server:
        assert server.ingest(HANDBOOK).status_code == 200
        yield server


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """Return a server with keys, and low limits for bodies, requests, time and cache."""
    folder = tmp_path_factory.mktemp("keyed") / "project"
    variables = {
        "AUTH": "keys",
        "MAX_BODY_BYTES": "20000",
        "BODY_TIMEOUT_SECONDS": "0.5",
        "HEADER_TIMEOUT_SECONDS": "0.5",
        "KEEP_ALIVE_SECONDS": "1",
        "RATE_LIMIT_PER_SECOND": "0.001",
        "RATE_LIMIT_BURST": str(BURST),
        "WRITE_WAIT_SECONDS": "0.5",
        "SYNC": "false",
    }
    settings = {f"PAIR__SERVER__{name}": value for name, value in variables.items()}
    with Served(folder, PAIR__ENGINE__WRITE_ATTEMPTS="2", **settings) as server:
        keyed = Keyed(server, folder)
        assert server.ingest(HANDBOOK, key=keyed.key("write")).status_code == 200
        yield keyed
