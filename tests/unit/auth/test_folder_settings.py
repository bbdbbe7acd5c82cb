"""The settings that the configuration of an untrusted folder may set."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pair import errors
from pair.auth.settings import ServerSettings
from pair.auth.trust import RULES, find_need
from pair.engine.settings import EngineSettings
from pair.packages.rules import SourcesSettings
from pair.settings import SECTIONS, Settings
from pair.sync.rules import SyncSettings
from support.trust import trust_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty folder, with a temporary home folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


def load(text: str, **variables: str) -> tuple[Settings, list[str]]:
    """Load the settings of a folder with this configuration; return them with the warnings."""
    Path("config.yaml").write_text(text, encoding="utf-8")
    said: list[str] = []
    return Settings.load(None, variables, said.append), said


def without_places(settings: Settings) -> Settings:
    return dataclasses.replace(settings, named=frozenset(), config_path=None)


def test_every_setting_is_classified():
    names = {f"{section}.{key.name}" for section, policy in SECTIONS.items() for key in dataclasses.fields(policy)}
    assert names == set(RULES)


def test_a_setting_without_a_row_needs_trust():
    assert find_need("sources.of_tomorrow", 1, 0) == "other"


HOSTILE = {
    "kb.sources_dir": ["'~'", "/", "..", "docs/../../x", "/tmp/x", "out/deep", ".git/hooks", "!!binary L2V0Yw=="],
    "kb.links_file_path": ["/etc/passwd", "out", "$${OUT}"],
    "kb.index_path": ["~/.profile", "~root/x", "out/x", "loop", "a/.GIT/b"],
    "kb.llms_txt_path": ["~/.profile"],
    "kb.index_cache_path": ["/tmp/x"],
    "kb.web_fetch_cache_dir": ["../x"],
    "kb.web_fetch_renderer": ["browser"],
    "kb.allow_private_addresses": ["true", "'yes'", "1"],
    "sources.cache_dir": ["'~'", "/srv", "cache"],
    "sources.default_url": ["https://evil.example/kb.zip"],
    "sources.release_repository": ["evil/kb"],
    "sources.github_api_url": ["https://evil.example"],
    "sources.signature_keys": ["[evil.pub]"],
    "engine.store": ["s3://evil/x", "gs://evil", "/srv/store", "~/store", "out", "!!binary L3Nydg=="],
    "engine.s3_endpoint": ["http://evil.example"],
    "engine.s3_region": ["evil"],
    "engine.lease": ["redis"],
    "engine.redis_url": ["redis://evil.example"],
    "engine.cache_dir": ["~/.cache"],
    "engine.embedder": ["openai", "fastembed"],
    "engine.embedding_model": ["evil/model"],
    "engine.embedding_url": ["https://evil.example/v1"],
    "engine.embedding_api_key": ["x"],
    "engine.reranker_model": ["evil/model"],
    "engine.graph": ["model"],
    "engine.ray_address": ["evil.example:6379"],
    "ai.base_url": ["https://evil.example/v1"],
    "ai.model": ["dear"],
    "ai.api_key": ["x"],
    "server.host": ["0.0.0.0", "'::'", "192.168.0.1", "evil.example", "!!binary MC4wLjAuMA=="],
    "server.keys_file": ["/tmp/keys.json", "../keys.json", "out/keys.json"],
    "server.jwt_jwks": ["jwks.json", "https://evil.example/jwks"],
    "server.jwt_issuer": ["evil"],
    "server.jwt_audience": ["evil"],
    "server.jwt_algorithms": ["ES256"],
    "server.jwt_leeway_seconds": ["80000"],
    "server.trusted_proxies": ["0.0.0.0/0"],
    "server.cors_origins": ["https://evil.example"],
    "server.mcp_write": ["true"],
    "server.otlp_endpoint": ["http://evil.example:4318/v1/traces"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in HOSTILE.items() for value in values])
def test_a_value_that_leads_out_of_an_untrusted_folder_is_treated_as_not_given(name: str, value: str, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    Path("out").symlink_to(tmp_path / "elsewhere")
    Path("loop").symlink_to("../elsewhere/new")
    Path("${OUT}").symlink_to(tmp_path / "elsewhere")
    section, _, key = name.partition(".")
    settings, said = load(f"# first\n{section}:\n  {key}: {value}\n")
    assert without_places(settings) == Settings()
    assert settings.named == frozenset()
    assert len(said) == 1
    assert f"{name} (config.yaml:3)" in said[0]
    assert "pair trust" in said[0]
    trust_folder(Path(), home=tmp_path / "home")
    try:
        assert getattr(getattr(Settings.load(None, {}), section), key) != getattr(SECTIONS[section](), key)
    except errors.UsageError as refused:
        assert value.startswith("!!binary"), refused  # noqa: PT017 - bytes may be refused for what they are


@pytest.mark.parametrize(
    "name", sorted(f"{name}.{key.name}" for name in SECTIONS for key in dataclasses.fields(SECTIONS[name]))
)
def test_no_variable_is_put_into_an_untrusted_configuration(name: str):
    section, _, key = name.partition(".")
    value = "[{id: a, kb: '${SECRET}'}]" if name == "librarians.entries" else "${SECRET}"
    settings, said = load(f"{section}:\n  {key}: {value}\n", SECRET="7")
    assert getattr(settings, section) == SECTIONS[section]()
    assert len(said) == 1


SAFE: list[tuple[str, Any]] = [
    ("kb:\n  sources_dir: docs\n  index_path: ./.pair/other.txt\n  max_source_bytes: 5\n",
     Settings(kb=SyncSettings(sources_dir="docs", index_path="./.pair/other.txt", max_source_bytes=5))),
    ("sources:\n  retries: 9\n  require_checksum: true\n  require_signature: true\n",
     Settings(sources=SourcesSettings(retries=9, require_checksum=True, require_signature=True))),
    ("engine:\n  store: 'memory:'\n  embedder: ngram\n  graph: 'off'\n  lease: file\n  chunk_size_bytes: 100\n",
     Settings(engine=EngineSettings(store="memory:", embedder="ngram", graph="off", lease="file",
                                     chunk_size_bytes=100))),
    ("server:\n  host: localhost\n  port: 9000\n  auth: keys\n  keys_file: conf/keys.json\n",
     Settings(server=ServerSettings(host="localhost", port=9000, auth="keys", keys_file="conf/keys.json"))),
    ("server:\n  host: '::1'\n", Settings(server=ServerSettings(host="::1"))),
    ("sources:\n  cache_dir: ~/.pair/kb\n  signature_keys: []\nkb:\n  llms_txt_path: ''\n", Settings()),
    ("kb:\n  sources_dir: $${HOME}\n", Settings(kb=SyncSettings(sources_dir="${HOME}"))),
    ("", Settings()),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SAFE, ids=range(len(SAFE)))
def test_a_value_that_stays_in_the_folder_counts_without_trust(text: str, expected: Settings):
    settings, said = load(text)
    assert (without_places(settings), said) == (expected, [])


def test_librarians_that_run_code_or_call_others_are_dropped_one_by_one():
    settings, said = load(
        "librarians:\n"
        "  - {id: a, kb: default}\n"
        "  - {id: b, function: 'own:said'}\n"
        "  - {id: c, endpoint: 'https://evil.example/ask'}\n"
        "  - {id: d, kb: default, token: x}\n"
        "  - {id: e, kb: default, description: '${SECRET}'}\n"
        "  - {<<: {function: 'own:said'}, id: f}\n"
        "  - {id: g, kind: router}\n",
        SECRET="x",
    )
    assert [entry["id"] for entry in settings.librarians.entries] == ["a", "g"]
    assert settings.folder_config is not None
    lines = [request.where for request in settings.folder_config.ignored]
    assert lines == [f"config.yaml:{line}" for line in range(3, 8)]
    assert "librarians.entries[2] (config.yaml:3)" in said[0]


def test_the_environment_and_a_named_file_count_in_any_folder():
    text = "ai:\n  base_url: ${ADDRESS}\n"
    named, said = load(text, ADDRESS="http://one", PAIR_CONFIG="config.yaml")
    assert (named.ai.base_url, said) == ("http://one", [])
    assert Settings.load("config.yaml", {"ADDRESS": "http://two"}).ai.base_url == "http://two"
    overridden, _ = load(text, PAIR__AI__BASE_URL="http://three")
    assert overridden.ai.base_url == "http://three"


def test_a_token_is_never_given_to_a_host_that_a_file_of_the_folder_names(tmp_path: Path):
    text = "sources:\n  github_api_url: https://evil.example\n"
    untrusted, _ = load(text, GITHUB_TOKEN="secret")
    assert (untrusted.sources.github_api_url, untrusted.github_token) == ("https://api.github.com", "secret")
    trust_folder(Path(), home=tmp_path / "home")
    trusted, _ = load(text, GITHUB_TOKEN="secret")
    assert (trusted.sources.github_api_url, trusted.github_token) == ("https://evil.example", "")
    named, _ = load(text, GITHUB_TOKEN="secret", PAIR_CONFIG="config.yaml")
    assert (named.sources.github_api_url, named.github_token) == ("https://evil.example", "secret")
    variable, _ = load(text, GITHUB_TOKEN="secret", PAIR__SOURCES__GITHUB_API_URL="https://ghe.example")
    assert (variable.sources.github_api_url, variable.github_token) == ("https://ghe.example", "secret")
    usual, _ = load("sources:\n  github_api_url: https://api.github.com\n", GITHUB_TOKEN="secret")
    assert usual.github_token == "secret"


def test_a_long_list_of_ignored_keys_is_cut():
    _, said = load(
        "ai:\n  base_url: http://a\n  model: b\n  api_key: c\nlibrarians:\n" + "  - {id: a, function: 'b:c'}\n" * 9
    )
    assert said[0].count("config.yaml:") == 5
    assert "and 7 more" in said[0]


def test_secrets_of_a_configuration_are_not_in_the_text_of_settings():
    settings, _ = load("ai:\n  api_key: s3cret\nlibrarians:\n  - {id: a, endpoint: 'http://x', token: s3cret}\n")
    assert "s3cret" not in repr(settings)
