"""Published KBs, and static file hosts that serve them."""

import json
from pathlib import Path
from typing import Any

from pair import Settings
from pair.kb.installer import Installer, Packaging
from pair.kb.installer import publish as publish_kb
from pair.packages.package import Label
from support.command import Workplace, write_files
from support.kbs import SMALL_KB
from support.server import Page, Server


def publish(workplace: Workplace, version: str, *, name: str = "handbook", page: str = "") -> None:
    """Publish to `dist` in this process, like the command. `page`: the text that differs in this version."""
    folder = write_files(workplace.folder / "kbs" / f"{name}-{version}", {**SMALL_KB, "page.md": page or version})
    installer = Installer(Settings.load(environment={"PAIR_KB_CACHE_DIR": str(workplace.cache)}))
    publish_kb(installer, str(workplace.folder / "dist"), folder, Packaging(Label(name, version)))


def serve(server: Server, folder: Path, prefix: str = "/kbs") -> str:
    """Publish all files of a folder; return the address of the feed."""
    for path in folder.iterdir():
        content = path.read_bytes()
        server.pages[f"{prefix}/{path.name}"] = Page(content, etag=f'"{hash(content)}"')
    return server.url(f"{prefix}/releases.json")


def published(workplace: Workplace, server: Server, *versions: str, name: str = "handbook") -> str:
    """Publish these versions in `dist` and serve them; return the address of the release index."""
    for version in versions:
        publish(workplace, version, name=name)
    return serve(server, workplace.folder / "dist")


def feed_in(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "releases.json").read_bytes()))


def move_version(workplace: Workplace, server: Server, version: str) -> None:
    """Replace the bytes of a published version, which publishers must not do."""
    for path in (workplace.folder / "dist").glob(f"handbook-{version}.zip*"):
        path.unlink()
    value = feed_in(workplace.folder / "dist")
    releases = value["kbs"]["handbook"]["releases"]
    value["kbs"]["handbook"]["releases"] = [each for each in releases if each["version"] != version]
    (workplace.folder / "dist" / "releases.json").write_text(json.dumps(value))
    publish(workplace, version, page="moved")
    serve(server, workplace.folder / "dist")
