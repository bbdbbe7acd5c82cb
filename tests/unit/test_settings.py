"""Settings: their sources, their precedence, and errors for invalid ones."""

import datetime
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pair.errors import UsageError
from pair.packages.rules import SourcesSettings
from pair.settings import SECTIONS, Settings
from pair.sync.rules import SyncSettings
from support.served import home_of
from support.trust import trust_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty folder, because settings are read from the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home_of(tmp_path)))
    return tmp_path


def load(text: str | None = None, *, config: str | None = None, **variables: str) -> Settings:
    if text is not None:
        Path("config.yaml").write_text(text, encoding="utf-8")
    trust_folder(Path(), home=home_of(Path.cwd()))
    return Settings.load(config, variables)


def refusal_of(text: str | None = None, **variables: str) -> UsageError:
    with pytest.raises(UsageError) as refusal:
        load(text, **variables)
    assert refusal.value.code == "E401"
    return refusal.value


def write_config(path: str, cache_dir: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(f"sources:\n  cache_dir: {cache_dir}\n", encoding="utf-8")
    return path


# ── where they come from ───────────────────────────────────────────────────────────────────────────


def test_without_a_file_everything_has_its_default():
    assert load() == Settings()
    assert load().kb == SyncSettings()
    assert load().sources == SourcesSettings()
    assert load().sources.cache_dir == "~/.pair/kb"
    assert load().kb.sources_dir == ".pair/knowledge"
    assert load().config_path is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("# only a comment\n", id="comment"),
        pytest.param("---\n", id="document-start"),
        pytest.param("sources:\n", id="empty-section"),
        pytest.param("kb: {}\nsources: null\n", id="sections-without-keys"),
    ],
)
def test_file_without_keys_leaves_the_defaults(text: str):
    settings = load(text)
    assert (settings.kb, settings.sources) == (SyncSettings(), SourcesSettings())
    assert settings.config_path == Path("config.yaml")


def test_file_sets_what_it_names_and_nothing_else():
    settings = load("kb:\n  sources_dir: docs/kb\nsources:\n  retries: 5\n  require_checksum: true\n")
    assert settings.kb == SyncSettings(sources_dir="docs/kb")
    assert settings.sources == SourcesSettings(retries=5, require_checksum=True)


def test_every_place_for_a_file_is_looked_at_in_order():
    places = [".pair/config.yaml", "config.yaml", "by-variable.yaml", "by-flag.yaml"]
    found = []
    for place in places:
        write_config(place, cache_dir=place)
        flag = "by-flag.yaml" if Path("by-flag.yaml").exists() else None
        variables = {"PAIR_CONFIG": "by-variable.yaml"} if Path("by-variable.yaml").exists() else {}
        settings = load(config=flag, **variables)
        found.append((settings.sources.cache_dir, str(settings.config_path)))
    assert found == [(place, place) for place in places]


def test_only_one_file_is_read():
    write_config("config.yaml", cache_dir="here")
    write_config(".pair/config.yaml", cache_dir="there")
    Path("config.yaml").write_text("sources:\n  retries: 1\n")
    assert load().sources == SourcesSettings(retries=1)


def test_folder_named_like_the_file_is_passed_over():
    Path("config.yaml").mkdir()
    write_config(".pair/config.yaml", cache_dir="there")
    assert load().sources.cache_dir == "there"


def test_empty_variable_names_no_file():
    assert load(PAIR_CONFIG="").config_path is None


@pytest.mark.parametrize("given", ["missing.yaml", "."])
def test_named_file_must_exist(given: str):
    write_config("config.yaml", cache_dir="here")
    with pytest.raises(UsageError) as refusal:
        Settings.load(given, {})
    assert (refusal.value.code, refusal.value.message) == (
        "E401",
        f"Cannot use --config: no such file: {given}".rstrip(".") + ".",
    )
    assert refusal_of(PAIR_CONFIG=given).message == f"Cannot use PAIR_CONFIG: no such file: {given}".rstrip(".") + "."


# ── which wins ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("source-21")
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("PAIR_KB_CACHE_DIR", "cache_dir"),
        ("PAIR_KB_DEFAULT_URL", "default_url"),
    ],
)
def test_a_variable_of_the_specification_overrides_the_file(name: str, key: str):
    text = f"sources:\n  {key}: from-file\n"
    assert getattr(load(text).sources, key) == "from-file"
    assert getattr(load(text, **{name: "from-variable"}).sources, key) == "from-variable"
    assert getattr(load(text, **{name: ""}).sources, key) == "from-file"


@pytest.mark.rule("source-21")
def test_an_override_wins_over_everything():
    text = "sources:\n  cache_dir: from-file\n"
    override = {"PAIR_KB_CACHE_DIR": "from-variable", "PAIR__SOURCES__CACHE_DIR": "from-override"}
    assert load(text, **override).sources.cache_dir == "from-override"


@pytest.mark.rule("source-21")
def test_an_address_in_a_variable_is_used_unchanged():
    assert load(PAIR_KB_DEFAULT_URL="https://h/a: b*.zip").sources.default_url == "https://h/a: b*.zip"


@pytest.mark.parametrize(
    ("name", "value", "section", "key", "expected"),
    [
        ("PAIR__SOURCES__RETRIES", "7", "sources", "retries", 7),
        ("PAIR__SOURCES__TIMEOUT_SECONDS", "0.5", "sources", "timeout_seconds", 0.5),
        ("PAIR__SOURCES__REQUIRE_CHECKSUM", "true", "sources", "require_checksum", True),
        ("PAIR__SOURCES__REQUIRE_CHECKSUM", "no", "sources", "require_checksum", False),
        ("PAIR__SOURCES__DEFAULT_URL", "", "sources", "default_url", ""),
        ("PAIR__SOURCES__DEFAULT_URL", "https://h/kb.zip?a=1#b", "sources", "default_url", "https://h/kb.zip?a=1#b"),
        ("PAIR__KB__SOURCES_DIR", "docs/kb", "kb", "sources_dir", "docs/kb"),
        ("PAIR__kb__Sources_Dir", "docs/kb", "kb", "sources_dir", "docs/kb"),
    ],
)
def test_override_sets_any_key(name: str, value: str, section: str, key: str, expected: Any):
    assert getattr(getattr(load(**{name: value}), section), key) == expected


def test_variables_of_others_are_not_looked_at():
    assert load(PAIR_SOMETHING="x", PAIR_="y", PATH="z", pair__sources__retries="9") == Settings()


# ── what is wrong ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("source-29")
@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        pytest.param(
            "kb:\n  sources_dir: x\nsourcs:\n  retries: 1\n",
            "Cannot use config.yaml:3: unknown section 'sourcs'.",
            "Did you mean sources?",
            id="section",
        ),
        pytest.param(
            "# first\n\nsources:\n  retries: 1\n  cachedir: x\n",
            "Cannot use config.yaml:5: unknown key of sources 'cachedir'.",
            "Did you mean cache_dir?",
            id="key",
        ),
        pytest.param(
            "sources: {retries: 1, retrys: 2}\n",
            "Cannot use config.yaml:1: unknown key of sources 'retrys'.",
            "Did you mean retries?",
            id="key-on-one-line",
        ),
        pytest.param(
            "kb:\n  cache_dir: x\n",
            "Cannot use config.yaml:2: unknown key of kb 'cache_dir'.",
            None,
            id="key-of-another-section",
        ),
        pytest.param("1: 2\n", "Cannot use config.yaml:1: unknown section '1'.", None, id="number"),
    ],
)
def test_unknown_name_in_the_file_is_reported_with_line_and_nearest_name(text: str, message: str, hint: str | None):
    refusal = refusal_of(text)
    assert refusal.message == message
    assert refusal.hints[-1].startswith("Use one of: ")
    if hint is not None:
        assert refusal.hints[0] == hint


@pytest.mark.rule("source-29")
@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("PAIR__SOURCE__RETRIES", "unknown section 'source'", "Did you mean sources?"),
        ("PAIR__SOURCES__RETRY", "unknown key of sources 'retry'", "Did you mean retries?"),
        ("PAIR__KB__SOURCE_DIR", "unknown key of kb 'source_dir'", "Did you mean sources_dir?"),
        ("PAIR__SOURCES", "unknown key of sources ''", None),
        ("PAIR__", "unknown section ''", None),
        ("PAIR__SOURCES__RETRIES__X", "unknown key of sources 'retries__x'", "Did you mean retries?"),
    ],
)
def test_unknown_override_is_reported_with_the_nearest_name(name: str, message: str, hint: str | None):
    refusal = refusal_of(**{name: "1"})
    assert refusal.message == f"Cannot use {name}: {message}."
    assert hint is None or refusal.hints[0] == hint


@pytest.mark.rule("source-29")
def test_name_like_no_other_gets_the_list_of_valid_ones():
    assert refusal_of("zzz:\n  a: 1\n").hints == (f"Use one of: {', '.join(SECTIONS)}",)


@pytest.mark.rule("source-29")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "sources:\n  retries: 1\n  retries: 2\n", "Cannot use config.yaml:3: retries is set twice.", id="key"
        ),
        pytest.param("kb: {}\nsources: {}\nkb: {}\n", "Cannot use config.yaml:3: kb is set twice.", id="section"),
        pytest.param("- sources\n", "Cannot use config.yaml:1: expected keys with values.", id="list-at-the-top"),
        pytest.param("just text\n", "Cannot use config.yaml:1: expected keys with values.", id="text-at-the-top"),
        pytest.param("\nsources: 5\n", "Cannot use config.yaml:2: expected keys with values.", id="number-as-section"),
        pytest.param(
            "sources:\n  - retries\n", "Cannot use config.yaml:2: expected keys with values.", id="list-as-section"
        ),
    ],
)
def test_wrong_shape_is_reported_with_its_line(text: str, message: str):
    assert refusal_of(text).message == message


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("just text\n", "Write KEY: VALUE"),
        ("sources:\n  retries: many\n", "Remove sources.retries to use its default"),
        ("sources:\n  cache_dir: ${NOWHERE}\n", "Set it, or write $${NAME} for a text that is not a variable"),
    ],
)
def test_a_refused_value_comes_with_advice(text: str, hint: str):
    assert refusal_of(text).hints == (hint,)


WRONG_VALUES = {
    "retries": ["-1", "1.5", "many", "[1]", "null", "''"],
    "timeout_seconds": ["0", "-1", "soon", ".nan", "null"],
    "retry_wait_seconds": ["-0.1", "soon"],
    "require_checksum": ["maybe", "2", "null", "[]"],
    "cache_dir": ["5", "true", "null", "[a]", "{a: b}", "2026-01-01"],
    "max_archive_entries": ["0", "-5", "1e3x"],
    "max_unpacked_bytes": ["0"],
    "max_compression_ratio": ["0"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values])
def test_value_of_a_wrong_kind_or_size_is_reported_with_its_line(key: str, value: str):
    refusal = refusal_of(f"# first line\nsources:\n  {key}: {value}\n")
    assert refusal.message.startswith(f"Cannot use config.yaml:3: sources.{key}: ")


def test_wrong_value_of_an_override_is_reported_with_its_name():
    assert refusal_of(PAIR__SOURCES__RETRIES="-1").message.startswith(
        "Cannot use PAIR__SOURCES__RETRIES: sources.retries: "
    )


def test_wrong_value_is_reported_with_the_place_that_set_it():
    refusal = refusal_of("sources:\n  retries: 3\n", PAIR__SOURCES__RETRIES="few")
    assert refusal.message.startswith("Cannot use PAIR__SOURCES__RETRIES: ")


@pytest.mark.rule("source-29")
@pytest.mark.parametrize(
    "value", ["[", "*x", "a: b: c", "@1", "%", "!secret x", "2026-99-99"], ids=lambda value: f"value {value}"
)
def test_override_that_is_not_yaml_is_reported_with_its_name(value: str):
    assert refusal_of(PAIR__SOURCES__RETRIES=value).message.startswith("Cannot use PAIR__SOURCES__RETRIES: ")


@pytest.mark.rule("source-29")
@pytest.mark.parametrize("value", ["!secret x", "!!python/object:os.system x", "2026-99-99"])
def test_value_in_the_file_that_yaml_cannot_make_is_reported_with_its_line(value: str):
    assert refusal_of(f"sources:\n  retries: {value}\n").message.startswith("Cannot use config.yaml:2: ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("sources:\n  retries: [1\n", 3, id="open-bracket"),
        pytest.param("sources:\n  retries: 1\n cache_dir: x\n", 3, id="bad-indentation"),
        pytest.param("sources:\n\tretries: 1\n", 2, id="tab"),
        pytest.param("sources: 'open\n", 2, id="open-quote"),
        pytest.param("sources:\n  cache_dir: *unknown\n", 2, id="unknown-alias"),
        pytest.param("kb: {}\n---\nsources: {}\n", 2, id="two-documents"),
    ],
)
def test_invalid_yaml_is_reported_with_its_line(text: str, line: int):
    assert refusal_of(text).message.startswith(f"Cannot use config.yaml:{line}: it is not valid YAML: ")


@pytest.mark.parametrize("content", [pytest.param(b"\xff\xfe\x00", id="not-utf-8"), pytest.param(b"a: \x00", id="nul")])
def test_file_that_is_not_text_is_reported(content: bytes):
    Path("config.yaml").write_bytes(content)
    assert refusal_of().message == "Cannot use config.yaml: it is not a readable YAML file."


# ── ${VARIABLES} ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${ROOT}/kb", "/srv/kb"),
        ("${ROOT}${ROOT}", "/srv/srv"),
        ("'${ROOT}'", "/srv"),
        ("$${ROOT}/kb", "${ROOT}/kb"),
        ("$${ROOT}/${ROOT}", "${ROOT}//srv"),
        ("$ROOT/kb", "$ROOT/kb"),
        ("${}", "${}"),
        ("${ROOT", "${ROOT"),
        ("costs $5", "costs $5"),
        ("${EMPTY}", ""),
        ("${NESTED}", "${ROOT}"),
    ],
)
def test_variable_in_a_value_is_put_in(value: str, expected: str):
    settings = load(f"sources:\n  cache_dir: {value}\n", ROOT="/srv", EMPTY="", NESTED="${ROOT}")
    assert settings.sources.cache_dir == expected


def test_a_variable_may_hold_a_number():
    assert load("sources:\n  retries: ${TRIES}\n", TRIES="9").sources.retries == 9


def test_value_of_a_variable_is_not_read_as_yaml():
    assert load("sources:\n  cache_dir: ${ODD}\n", ODD="[a: *b").sources.cache_dir == "[a: *b"


def test_missing_variable_is_reported_with_its_line():
    refusal = refusal_of("sources:\n  retries: 1\n  cache_dir: ${ONE}/${TWO}/$${THREE}\n")
    assert refusal.message == "Cannot use config.yaml:3: environment variable not set: ONE, TWO."


# ── the other variables ────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("source-21")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", True),
        ("true", True),
        ("YES", True),
        (" on ", True),
        ("0", False),
        ("", False),
        ("no", False),
        ("2", False),
    ],
)
def test_diagnostics_are_switched_by_a_variable(value: str, expected: bool):
    assert load(PAIR_DIAG=value).diagnostics is expected


def test_source_date_is_read_in_utc():
    assert load(SOURCE_DATE_EPOCH="1767225600").source_date == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert load(SOURCE_DATE_EPOCH="").source_date is None
    assert load().source_date is None


@pytest.mark.parametrize("value", ["yesterday", "1.5", "1e9", "9" * 30, "9" * 5000, "-" + "9" * 30, " "])
def test_source_date_that_is_not_a_number_of_seconds_is_reported(value: str):
    assert (
        refusal_of(SOURCE_DATE_EPOCH=value).message
        == f"Cannot use SOURCE_DATE_EPOCH: {value!r} is not a number of seconds."
    )


def test_token_is_read_but_never_shown():
    settings = load(GITHUB_TOKEN="ghp_secret")
    assert settings.github_token == "ghp_secret"
    assert "ghp_secret" not in repr(settings)
    assert "ghp_secret" not in str(settings)


@pytest.mark.parametrize("value", ["1e12", "inf", "nan", "-1"])
@pytest.mark.parametrize(
    "key",
    [
        "PAIR__KB__URL_REFRESH_MIN_INTERVAL_SECONDS",
        "PAIR__KB__RUNTIME_REFRESH_TICK_SECONDS",
        "PAIR__KB__WEB_FETCH_TIMEOUT_SECONDS",
        "PAIR__SOURCES__TIMEOUT_SECONDS",
        "PAIR__SOURCES__RETRY_WAIT_SECONDS",
        "PAIR__AI__TIMEOUT_SECONDS",
        "PAIR__AI__RETRY_WAIT_SECONDS",
    ],
)
def test_a_duration_that_no_clock_can_hold_is_refused(key: str, value: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Settings.load(environment={key: value})
    assert (refusal.value.code, key in refusal.value.message) == ("E401", True)


# ── lists of texts ─────────────────────────────────────────────────────────────────────────────────


def test_a_list_of_strings_comes_from_the_file_or_from_a_variable_with_commas():
    text = "sources:\n  signature_keys: [one.pub, '${TWO}', '$${THREE}']\n"
    assert load(text, TWO="two.pub").sources.signature_keys == ("one.pub", "two.pub", "${THREE}")
    variables = {"PAIR__SOURCES__SIGNATURE_KEYS": " one.pub, my keys/two.pub,,"}
    assert load(text, TWO="", **variables).sources.signature_keys == ("one.pub", "my keys/two.pub")
    assert load("sources:\n  signature_keys: []\n").sources.signature_keys == ()


@pytest.mark.parametrize("value", ["one.pub", "7", "[7]", "[[one.pub]]", "{one: two}", "['${UNSET}']", '["a\\0b"]'])
def test_what_is_not_a_list_of_strings_is_refused_with_its_line(value: str) -> None:
    assert "config.yaml:2" in refusal_of(f"sources:\n  signature_keys: {value}\n").message


# ── librarians ─────────────────────────────────────────────────────────────────────────────────────


def test_librarians_are_a_list_or_a_section_with_one():
    entries = "[{id: handbook, kb: default}]"
    expected = ({"id": "handbook", "kb": "default"},)
    assert load(f"librarians: {entries}\n").librarians.entries == expected
    settings = load(f"librarians:\n  max_depth: 3\n  entries: {entries}\n")
    assert (settings.librarians.entries, settings.librarians.max_depth) == (expected, 3)


def test_a_variable_that_is_not_set_is_the_fault_of_its_librarian_alone():
    text = "librarians:\n  - {id: a, token: '${KNOWN}'}\n  - {id: b, token: '${UNKNOWN}'}\n"
    assert [each["token"] for each in load(text, KNOWN="x").librarians.entries] == ["x", "${UNKNOWN}"]


def test_librarians_that_are_not_a_list_are_refused_with_their_line():
    assert "config.yaml:2" in refusal_of("librarians:\n  entries: 7\n").message


# ── plain values ───────────────────────────────────────────────────────────────────────────────────


def test_plain_values_are_read_without_loading_pydantic(folder: Path) -> None:
    variables = {"CHUNK_SIZE_BYTES": "700", "GRAPH": "off", "KEEP_VERSIONS": "0", "STORE": "somewhere"}
    code = (
        "import sys; from pair.settings import Settings; engine = Settings.load().engine;"
        "print(engine.chunk_size_bytes, engine.graph, engine.keep_versions, engine.store, 'pydantic' in sys.modules)"
    )
    environment = {**os.environ, **{f"PAIR__ENGINE__{name}": value for name, value in variables.items()}}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["700", "off", "0", "somewhere", "False"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENGINE__CHUNK_SIZE_BYTES", "-1"),
        ("ENGINE__KEEP_VERSIONS", "1" * 40 + "x"),
        ("ENGINE__BUILD_ATTEMPTS", "0"),
        ("ENGINE__QUERY_SHARD_FANOUT", "65"),
        ("ENGINE__GRAPH", "OFF"),
        ("ENGINE__KEEP_VERSIONS", "²"),
    ],
)
def test_a_plain_value_out_of_range_is_refused(name: str, value: str) -> None:
    assert name.partition("__")[2].lower() in str(refusal_of(**{f"PAIR__{name}": value}))
