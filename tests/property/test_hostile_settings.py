"""Hostile or mistyped configuration: usable settings, or E401 with the place.

`HYPOTHESIS_PROFILE=nightly` tries hundreds of times as many.
"""

import dataclasses
import datetime
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.settings import NAMED_VARIABLES, SECTIONS, Settings
from support.damage import bounded, damaged_json, refusal, tried

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

WHOLE: dict[str, Any] = {
    "kb": {"sources_dir": "knowledge", "url_refresh_min_interval_seconds": 60, "web_fetch_renderer": "http"},
    "sources": {"cache_dir": "~/.pair/kb", "default_url": "https://example.com/kb.zip"},
    "engine": {"store": "${STORE}", "lease": "file", "lease_seconds": 30, "cache_max_bytes": 0, "graph": "off"},
    "ai": {"base_url": "http://localhost:11434/v1", "model": "small"},
    "librarians": [{"id": "docs", "kind": "shelf", "kb": "default", "tags": ["a"]}],
    "server": {"port": 0, "auth": "keys", "max_body_bytes": 1000},
}
KEYS = [
    f"PAIR__{section}__{field.name}".upper() for section in SECTIONS for field in dataclasses.fields(SECTIONS[section])
]
TEXTS = st.text(max_size=40) | st.sampled_from(
    [
        "",
        " ",
        "nan",
        "inf",
        "-inf",
        "1e308",
        "9" * 5000,
        "-1",
        "0",
        "true",
        "\ud800",
        "\0",
        "[1]",
        "{",
        "${HOME}",
        "x" * 20_000,
    ]
)
_ALIASES = [f"&{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]" for n in range(12)]
"""Aliases that each repeat the previous one nine times, so a few lines expand beyond any memory."""
YAML = [
    "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"k{n}: {text}\n" for n, text in enumerate(_ALIASES)),
    "librarians:\n- &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"- {text}\n" for text in _ALIASES),
    "librarians: &a [*a]\n",
    "librarians: &a {b: *a}\n",
    "engine:\n  store: " + "[" * 1500,
    "engine:\n  store: " + "{a: " * 1500,
    "- " * 1500,
    "engine:\n  <<: {store: a}\n",
    "engine: !!python/object/apply:os.system ['true']\n",
    "engine:\n  ? [a, b]\n  : c\n",
    "engine:\n  store: !!binary gIGC\n  cache_max_bytes: 1_000\n  cache_ttl_seconds: .inf\n",
    'engine:\n  store: "a\\0b"\n',
    'engine:\n  store: "\\ud800"\n',
    "engine:\n  lease_seconds: 1:30\n  gc_grace_seconds: 0o17\n",
    "engine:\n  store: 2024-13-45\n  cache_dir: 2024-02-30T25:00:00\n",
    "\t",
    "%YAML 9.9\n---\nengine: {}\n",
    "--- a\n--- b\n",
    "engine: " + "x" * 3_000_000,
]  # fmt: skip


def use(settings: Settings) -> None:
    """Use values of each kind like the code that needs them."""
    for section in SECTIONS:
        for name, value in vars(getattr(settings, section)).items():
            if isinstance(value, float):
                assert math.isfinite(value), name
                if name.endswith("_seconds"):
                    assert value <= threading.TIMEOUT_MAX, name
                    assert datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=value)
            if isinstance(value, str):
                assert b"\0" not in value.encode("utf-8", "surrogateescape"), name


def load(path: Path | None, variables: dict[str, str]) -> None:
    given = {"STORE": "memory:", **variables}
    with bounded():
        refused = refusal(lambda: Settings.load(path, given))
        if refused is None:
            use(Settings.load(path, given))
        else:
            assert refused.code == "E401"
            assert len(refused.message) < 10_000


@tried(50, 5_000)
@given(data=st.data())
def test_a_damaged_configuration_file_is_understood_or_refused(tmp_path_factory: Any, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_bytes(data.draw(damaged_json(WHOLE)))
    load(path, {})


@pytest.mark.parametrize("text", YAML, ids=range(len(YAML)))
def test_yaml_that_is_meant_to_hurt_is_understood_or_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    load(tmp_path / "config.yaml", {})


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_no_system_could_be_given_is_refused(text: str) -> None:
    refused = refusal(lambda: Settings.load(None, {"PAIR__ENGINE__STORE": text}))
    assert refused is not None
    assert (refused.code, refused.details["where"]) == ("E401", "PAIR__ENGINE__STORE")
    odd = "caf\udce9"
    assert Settings.load(None, {"PAIR__ENGINE__STORE": odd}).engine.store == odd


@pytest.mark.parametrize("value", ["inf", "1e300", "nan", "86401"])
def test_an_absurdly_long_time_is_refused(value: str) -> None:
    refused = refusal(lambda: Settings.load(None, {"PAIR__ENGINE__LEASE_SECONDS": value}))
    assert refused is not None
    assert refused.code == "E401"


@tried(100, 10_000)
@given(
    st.dictionaries(
        st.sampled_from([*KEYS, *NAMED_VARIABLES, "SOURCE_DATE_EPOCH", "PAIR__", "PAIR__X"]), TEXTS, max_size=3
    )
)
def test_damaged_variables_are_understood_or_refused(variables: dict[str, str]) -> None:
    load(None, variables)
