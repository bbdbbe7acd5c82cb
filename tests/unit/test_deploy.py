"""What is shipped for containers, as far as it can be judged without one."""

import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
DOCKERFILE = (PROJECT / "deploy" / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "deploy" / "compose.yaml").read_text())


def test_the_image_constrains_every_package_to_one_version() -> None:
    [command] = re.findall(r"^RUN (sed .*) > versions.txt", DOCKERFILE, re.MULTILINE)
    told = subprocess.run(["sh", "-c", command], cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    packages = [Requirement(line) for line in told.splitlines()]
    here = Counter(canonicalize_name(each.name) for each in packages if each.marker is None or each.marker.evaluate())
    assert {"redis", "obstore", "numpy"} <= here.keys()
    assert set(here.values()) == {1}, here.most_common(3)


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
