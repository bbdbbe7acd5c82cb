"""Damaged feeds and locks: read, or refused with a code, without any change on disk.

`HYPOTHESIS_PROFILE=nightly` tries hundreds of times as many.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from pair.kb.installer import Installer, LockService, Packaging, publish
from pair.packages.install import InstallRequest
from pair.packages.lockfile import read_lock, to_bytes
from pair.packages.package import Label
from pair.packages.release_index import Release, ReleaseIndex, choose, parse_feed, to_source
from pair.packages.resolve import FeedAddress
from pair.settings import Settings
from support.damage import bounded, damaged_json, damaged_values, refusal, tried

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


# ── feeds ──────────────────────────────────────────────────────────────────────────────────────────

RELEASE = Release("1.0.0", "kb-1.0.0.zip", 10, "0a" * 32, "sha256:" + "0b" * 32, "", "", False, "2026-01-31T12:00:00Z")
FEED = json.loads(ReleaseIndex({"kb": (RELEASE,), "other": (RELEASE,)}).to_bytes())
PLACES = ("https://example.com/kbs/releases.json", "/srv/kbs/releases.json", "s3://bucket/kbs/releases.json")


@tried(200, 10_000)
@given(damaged_json(FEED), st.sampled_from(PLACES), st.sampled_from(["", "kb", "other", "x"]))
def test_a_feed_is_read_whole_or_refused_and_leads_nowhere_else(content: bytes, place: str, name: str) -> None:
    with bounded():
        refused = refusal(lambda: parse_feed(content, place))
        if refused is not None:
            assert refused.code == "E019"
            return
        feed = parse_feed(content, place)
        assert parse_feed(feed.to_bytes(), place).to_bytes() == feed.to_bytes()
        address = FeedAddress(place, place, name)
        missing = refusal(lambda: choose(feed, address))
        if missing is not None:
            assert missing.code == "E020"
            return
        _, release = choose(feed, address)
        location = to_source(release, address).location
        folder = place.removesuffix("releases.json")
        assert location.startswith((folder, "http://", "https://"))
        assert ".." not in location.removeprefix(folder).split("/")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("releases")
    (made / "kb").mkdir()
    (made / "kb" / "a.md").write_text("One.")
    installer = installer_in(made)
    publish(installer, str(made / "dist"), made / "kb", Packaging(Label(name="kb", version="1.0.0")))
    return made


def installer_in(folder: Path) -> Installer:
    return Installer(Settings.load(environment={"PAIR_KB_CACHE_DIR": str(folder / "cache")}), folder=folder)


@tried(20, 1_000)
@given(data=st.data())
def test_a_damaged_feed_installs_the_kb_or_nothing_and_is_never_replaced(folder: Path, data: st.DataObject) -> None:
    content = data.draw(damaged_json(json.loads((folder / "dist" / "releases.json").read_bytes())))
    with bounded(), tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        shutil.copytree(folder / "dist", work / "dist")
        (work / "dist" / "releases.json").write_bytes(content)
        installer, target = installer_in(work), work / "target"

        def install() -> None:
            # An address of another host is for other tests.
            source = installer.resolve("./dist/releases.json", offline=True)
            installer.apply(InstallRequest("install", target), source, offline=True)

        if refusal(install) is None:
            assert (target / "a.md").read_text() == "One."
        else:
            assert not target.exists()
        again = refusal(
            lambda: publish(installer, str(work / "dist"), folder / "kb", Packaging(Label(name="kb", version="1.0.1")))
        )
        if again is not None:
            assert again.code == "E019"
            assert (work / "dist" / "releases.json").read_bytes() == content


# ── locks ──────────────────────────────────────────────────────────────────────────────────────────

KB: dict[str, Any] = {
    "id": "default",
    "target": "target",
    "source": "./dist/releases.json#kb",
    "name": "kb",
    "version": "1.0.0",
    "archive_sha256": "0a" * 32,
    "content_sha256": "0b" * 32,
    "embedder": "",
    "manifest_version": 0,
}


@st.composite
def damaged_toml(draw: st.DrawFn, valid: Any) -> bytes:
    """Draw TOML text with some changes; as JSON, which is invalid TOML, if TOML cannot express the value."""
    value = draw(damaged_values(valid))
    try:
        content = tomli_w.dumps(value).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, AttributeError):
        content = draw(damaged_json(valid))
    place = draw(st.integers(0, len(content)))
    spoilt = content[:place] + draw(st.binary(max_size=4)) + content[place + draw(st.integers(0, 3)) :]
    return draw(st.sampled_from([content, content, spoilt, content[:place], b"\xef\xbb\xbf" + content]))


@tried(200, 10_000)
@given(content=damaged_toml({"version": 1, "kb": [KB, KB | {"id": "other", "target": "deep/other"}]}))
def test_a_lock_is_read_whole_or_refused_and_names_nothing_outside_its_folder(folder: Path, content: bytes) -> None:
    path = folder / "read.lock"
    path.write_bytes(content)
    with bounded():
        refused = refusal(lambda: read_lock(path))
        if refused is not None:
            assert refused.code == "E023"
            return
        lock = read_lock(path)
        assert to_bytes(lock.kbs) == to_bytes(read_lock(path).kbs)
        for kb in lock.kbs:
            assert lock.target_of(kb).resolve().is_relative_to(folder.resolve())


@tried(20, 1_000)
@given(data=st.data())
def test_a_damaged_lock_installs_what_is_locked_or_nothing(folder: Path, data: st.DataObject) -> None:
    with bounded(), tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        shutil.copytree(folder / "dist", work / "dist")
        release = json.loads((work / "dist" / "releases.json").read_bytes())["kbs"]["kb"]["releases"][0]
        whole = KB | {
            "archive_sha256": release["sha256"],
            "content_sha256": release["content_checksum"].removeprefix("sha256:"),
        }
        (work / "pair.lock").write_bytes(data.draw(damaged_toml({"version": 1, "kb": [whole]})))
        locks = LockService(installer_in(work), work / "pair.lock")
        refused = refusal(lambda: locks.install(None, force=False, dry_run=False, offline=True))
        refusal(locks.check)
        placed = [path for path in work.rglob("a.md") if not path.is_relative_to(work / "dist")]
        assert len(placed) <= 1
        if refused is not None:
            assert placed == []
        for path in placed:
            assert path.read_text() == "One."
