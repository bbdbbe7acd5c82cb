"""The files for containers, checked without starting a container."""

import re
import tomllib
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
DOCKERFILE = (PROJECT / "deploy" / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "deploy" / "compose.yaml").read_text())


def pins_in(lock: Path) -> dict[str, str]:
    """Return each package of a lock: version, marker and hashes."""
    blocks = re.findall(r"(?m)^([A-Za-z0-9._-]+)(==[^\n]*(?:\n    --hash=[^\n]*)*)", lock.read_text())
    return {f"{canonicalize_name(name)} {pin.partition(chr(10))[0]}": pin for name, pin in blocks}


def test_the_image_installs_by_hash_what_the_tests_run_with() -> None:
    image, tests = pins_in(PROJECT / "deploy" / "requirements.lock"), pins_in(PROJECT / "requirements-dev.lock")
    assert len(image) > 80
    assert image.items() <= tests.items()
    assert all("--hash=sha256:" in pin for pin in image.values())
    installs = [line for line in DOCKERFILE.splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert "--require-hashes -r requirements.lock" in installs[0]
    assert {"--no-index", "--no-deps", "--no-build-isolation"} <= set(installs[1].split())


def needed_here(extras: set[str]) -> set[str]:
    """Return what the package and these extras need on this machine, from installed metadata."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    listed = list(project["project"]["dependencies"]) + project["dependency-groups"]["image"]
    listed += [line for extra in extras for line in project["project"]["optional-dependencies"][extra]]
    waiting, needed = [Requirement(line) for line in listed], set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, *sorted(requirement.extras)) in needed:
            continue
        needed.add((name, *sorted(requirement.extras)))
        for line in metadata.requires(name) or ():
            further = Requirement(line)
            if further.marker is None or any(
                further.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
            ):
                waiting.append(further)
    return {name for name, *_ in needed}


def test_the_lock_of_the_image_has_all_that_its_extras_need() -> None:
    [extras] = re.findall(r"\.\[([a-z0-9,]+)\]", DOCKERFILE)
    locked = {name.partition(" ")[0] for name in pins_in(PROJECT / "deploy" / "requirements.lock")}
    assert needed_here(set(extras.split(","))) <= locked


def test_the_image_has_extras_that_there_are_and_files_that_there_are() -> None:
    [extras] = re.findall(r"\.\[([a-z0-9,]+)\]", DOCKERFILE)
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    copied = [name for line in re.findall(r"^COPY (?!--)(.*)", DOCKERFILE, re.MULTILINE) for name in line.split()[:-1]]
    assert all((PROJECT / name).exists() for name in copied)


def test_the_user_of_the_image_is_the_one_who_is_given_the_keys() -> None:
    [user] = re.findall(r"^USER (\d+)", DOCKERFILE, re.MULTILINE)
    assert f"chown -R {user} deploy/keys" in (PROJECT / "deploy" / "compose.yaml").read_text()


def test_compose_gives_every_variable_that_the_configuration_takes() -> None:
    taken = set(re.findall(r"\$\{(\w+)\}", (PROJECT / "deploy" / "config.yaml").read_text()))
    for name in ("pair-1", "pair-2", "pair-3", "pair-doctor"):
        assert taken <= COMPOSE["services"][name]["environment"].keys()
    secrets = {line.partition("=")[0] for line in (PROJECT / "deploy" / "example.env").read_text().splitlines()}
    asked = set(re.findall(r"\$\{(\w+):\?", (PROJECT / "deploy" / "compose.yaml").read_text()))
    assert asked <= secrets


def test_compose_names_the_configuration_so_that_it_counts_in_full() -> None:
    for name in ("pair-1", "pair-2", "pair-3", "pair-doctor"):
        service = COMPOSE["services"][name]
        mounted = [volume.split(":")[1] for volume in service["volumes"] if volume.startswith("./config.yaml:")]
        assert [service["environment"]["PAIR_CONFIG"]] == mounted


def test_the_user_of_the_image_may_write_beside_the_cache() -> None:
    """Shards are built in a folder beside the cache, so the folder above the cache must belong to the user."""
    [cache] = re.findall(r"PAIR__ENGINE__CACHE_DIR=(\S+)", DOCKERFILE)
    [made] = re.findall(r"^RUN install --directory --owner=pair (.*)", DOCKERFILE, re.MULTILINE)
    assert str(PurePosixPath(cache).parent) in made.split()
