"""`pair ask --receipt` and `pair check`: a valid receipt passes, and every change of it is detected."""

import contextlib
import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from pair import errors
from pair.kb.receipts import check_receipt, read_receipt
from pair.settings import Settings
from support.command import Outcome, Workplace, write_files
from support.minisign import Keys

QUESTION = "When is tea served?"
FILES = {
    "tea.md": "# Tea\n\nTea is served at four in the garden.\n",
    "soup.md": "# Soup\n\nSoup is served on Fridays in the hall.\n",
    "bread.md": "# Bread\n\nThe baker brings the bread at seven.\n",
}


@pytest.fixture
def receipt(workplace: Workplace) -> Path:
    """Return the receipt of an answer from an installed package."""
    write_files(workplace.folder / "house", {**FILES})
    package = ("package", "house", "-o", "house.zip", "--name", "house", "--version", "1.0.0", "--with-index")
    workplace.pair(*package).succeeds()
    workplace.pair("install", "--offline", "--source", "./house.zip").succeeds()
    workplace.pair("ask", QUESTION, "--receipt", "receipt.json").succeeds()
    return workplace.folder / "receipt.json"


def check(workplace: Workplace, *options: str | Path, **variables: str) -> Outcome:
    return workplace.pair("check", "receipt.json", *options, **variables)


def parts(done: Outcome) -> dict[str, Any]:
    return {row["part"]: row["ok"] for row in done.json["checks"]}


def edit(path: Path, **changes: Any) -> None:
    """Yield the fields for an edit, and update the digests to match."""
    value = json.loads(path.read_text())
    for name, change in changes.items():
        value[name] = change(value[name])
        text = json.dumps(value[name], sort_keys=True)
        value["digests"][name] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


def test_a_receipt_holds_in_the_kb_and_in_its_package(workplace: Workplace, receipt: Path) -> None:
    value = json.loads(receipt.read_text())
    assert value["question"] == QUESTION
    assert "at four in the garden" in value["answer"]["text"]
    assert (value["package"]["name"], value["package"]["version"]) == ("house", "1.0.0")
    assert parts(check(workplace, "--json").succeeds()) == {
        "digests": True,
        "signature": None,
        "passages": True,
        "retrieval": True,
        "quotations": True,
    }
    elsewhere = workplace.folder / "elsewhere"
    elsewhere.mkdir()
    for name in ("receipt.json", "house.zip"):
        shutil.move(workplace.folder / name, elsewhere / name)
    shutil.rmtree(workplace.folder / ".pair")
    done = workplace.pair("check", "elsewhere/receipt.json", "--package", "elsewhere/house.zip").succeeds()
    assert "✓ package     house.zip is house 1.0.0\n" in done.stdout
    assert done.stdout.endswith("The receipt is valid.\n")


@pytest.mark.parametrize("is_signed", [False, True])
def test_any_changed_byte_of_a_receipt_is_named(
    workplace: Workplace, receipt: Path, keys: Keys, is_signed: bool
) -> None:
    if is_signed:
        workplace.pair("ask", QUESTION, "--receipt", "receipt.json", "--sign", keys.secret).succeeds()
    content, chance = receipt.read_bytes(), random.Random(24)
    unnoticed = []
    for place in range(len(content)):
        other = bytes([content[place] ^ chance.randint(1, 255)])
        for changed in (bytes([content[place] ^ 1]), other, b"", b" " + content[place : place + 1]):
            receipt.write_bytes(content[:place] + changed + content[place + 1 :])
            with contextlib.suppress(errors.UsageError):  # it is no longer a receipt: E251
                if check_receipt(*read_receipt(receipt), Settings(), package=None, trusted=None)[0].is_ok:
                    unnoticed.append((place, changed))
    assert unnoticed == []
    receipt.write_bytes(content.replace(QUESTION.encode(), b"When is Tea served?"))
    assert parts(check(workplace, "--json").exits(1))["digests"] is False
    for shorter in (content[:-1], content[: len(content) // 2], b""):
        receipt.write_bytes(shorter)
        assert check(workplace).status in {1, 2}


def test_the_changed_part_is_named(workplace: Workplace, receipt: Path) -> None:
    receipt.write_text(receipt.read_text().replace(QUESTION, "When is soup served?", 1))
    done = check(workplace).exits(1)
    assert "✗ digests     changed since the receipt was made: question\n" in done.stdout
    assert done.stdout.endswith("The receipt is not valid.\n")


def test_a_forged_quotation_with_mended_digests_is_refused(workplace: Workplace, receipt: Path) -> None:
    edit(receipt, answer=lambda answer: {**answer, "text": answer["text"].replace("four", "five")})
    done = check(workplace, "--json").exits(1)
    assert (parts(done)["digests"], parts(done)["passages"], parts(done)["quotations"]) == (True, True, False)


def test_a_sentence_beside_the_quotations_is_refused_or_not_proven(workplace: Workplace, receipt: Path) -> None:
    edit(receipt, answer=lambda answer: {**answer, "text": f"Tea is served at five.\n\n{answer['text']}"})
    done = check(workplace).exits(1)
    assert "✗ quotations  'Tea is served at five.' is not a quotation\n" in done.stdout
    edit(receipt, answer=lambda answer: {**answer, "method": "model"})
    assert parts(check(workplace, "--json").succeeds())["wording"] is None


def test_a_forged_passage_with_mended_digests_is_refused(workplace: Workplace, receipt: Path) -> None:
    def forge(passages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        text = passages[0]["text"].replace("four", "five")
        return [{**passages[0], "text": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}, *passages[1:]]

    edit(receipt, passages=forge)
    assert parts(check(workplace, "--json").exits(1))["passages"] is False
    assert parts(check(workplace, "--json", "--package", "house.zip").exits(1))["passages"] is False


def test_a_real_passage_that_the_search_did_not_find_is_refused(workplace: Workplace, receipt: Path) -> None:
    text = FILES["tea.md"][: FILES["tea.md"].index("four")]
    cited = {"start": 0, "end": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest(), "text": text}
    edit(receipt, passages=lambda passages: [{**passages[0], **cited}], answer=lambda answer: {**answer, "text": ""})
    done = check(workplace, "--json").exits(1)
    assert (parts(done)["passages"], parts(done)["retrieval"]) == (True, False)


def test_the_answer_to_another_question_is_refused(workplace: Workplace, receipt: Path) -> None:
    edit(receipt, question=lambda _: "When is supper?")
    done = check(workplace).exits(1)
    assert f"✗ retrieval   the search was for another question: {QUESTION!r}\n" in done.stdout


@pytest.mark.parametrize("change", [{"mode": "x"}, {"limit": 0}, {"limit": 10**9}, {"passages": [{"start": -1}]}])
def test_a_retrieval_that_cannot_be_repeated_is_no_receipt(
    workplace: Workplace, receipt: Path, change: dict[str, Any]
) -> None:
    edit(receipt, retrieval=lambda found: {**found, **change})
    assert check(workplace, "--json").exits(2).error_code == "E251"


def test_a_forged_title_is_refused(workplace: Workplace, receipt: Path) -> None:
    edit(receipt, passages=lambda passages: [{**passages[0], "title": "Decree"}, *passages[1:]])
    assert "✗ passages    [1] tea.md 0-" in check(workplace).exits(1).stdout


def test_a_receipt_with_other_line_ends_or_order_is_refused_with_its_first_line(
    workplace: Workplace, receipt: Path
) -> None:
    content = receipt.read_bytes()
    receipt.write_bytes(content.replace(b"\n", b"\r\n"))
    assert "not in its canonical form, from line 1 on" in check(workplace).exits(1).stdout
    receipt.write_text(json.dumps(dict(reversed(json.loads(content).items())), indent=1) + "\n")
    assert "not in its canonical form, from line 2 on" in check(workplace).exits(1).stdout


def test_reordered_retrieval_is_refused(workplace: Workplace, receipt: Path) -> None:
    edit(receipt, retrieval=lambda found: {**found, "passages": found["passages"][::-1]})
    assert parts(check(workplace, "--json").exits(1))["retrieval"] is False


def test_a_signature_counts_only_by_a_trusted_key(
    workplace: Workplace, receipt: Path, keys: Keys, others: Keys
) -> None:
    workplace.pair("ask", QUESTION, "--receipt", "receipt.json", "--sign", keys.secret).succeeds()
    assert parts(check(workplace, "--json", "--identity", keys.public).succeeds())["signature"] is True
    assert parts(check(workplace, "--json", "--identity", others.public).exits(1))["signature"] is False
    trusted = {"PAIR__SOURCES__SIGNATURE_KEYS": keys.line}
    assert parts(check(workplace, "--json", **trusted).succeeds())["signature"] is True
    assert parts(check(workplace, "--json").succeeds())["signature"] is None
    edit(receipt, question=lambda _: "When is supper?")
    assert parts(check(workplace, "--json", "--identity", keys.public).exits(1))["signature"] is False


def test_a_configured_key_signs_every_receipt(workplace: Workplace, receipt: Path, keys: Keys) -> None:
    configured = {"PAIR__LIBRARIANS__RECEIPT_KEY": str(keys.secret)}
    workplace.pair("ask", QUESTION, "--receipt", "receipt.json", **configured).succeeds()
    assert parts(check(workplace, "--json", "--identity", keys.line).succeeds())["signature"] is True


def test_an_unsigned_receipt_is_refused_where_a_signature_is_required(
    workplace: Workplace, receipt: Path, keys: Keys
) -> None:
    assert parts(check(workplace, "--json", "--identity", keys.public).exits(1))["signature"] is False


def test_a_receipt_holds_after_compaction(workplace: Workplace, receipt: Path) -> None:
    workplace.pair("compact", "--all").succeeds()
    check(workplace).succeeds()


def test_a_receipt_names_what_changed_after_an_edit(workplace: Workplace, receipt: Path) -> None:
    keep_none = {"PAIR__ENGINE__KEEP_VERSIONS": "0", "PAIR__ENGINE__KEEP_DAYS": "0"}
    (workplace.folder / ".pair/knowledge/tea.md").write_text("# Tea\n\nTea is served at five in the hall.\n")
    workplace.pair("sync", **keep_none).succeeds()
    check(workplace).succeeds()
    workplace.pair("gc", **keep_none, PAIR__ENGINE__GC_GRACE_SECONDS="0").succeeds()
    done = check(workplace).exits(1)
    assert "✗ passages    [1] tea.md 0-" in done.stdout
    check(workplace, "--package", "house.zip").succeeds()


def test_a_reembedded_kb_is_reported_as_another_retrieval(workplace: Workplace, receipt: Path) -> None:
    other = {"PAIR__ENGINE__EMBEDDER": "static"}
    workplace.pair("reembed", **other).succeeds()
    done = check(workplace, "--json", **other).exits(1)
    assert (parts(done)["passages"], parts(done)["retrieval"]) == (True, False)
    check(workplace).succeeds()  # with the embedder of the answer, in the version that the receipt names


def test_a_receipt_of_a_version_that_was_rolled_back_still_holds(workplace: Workplace, receipt: Path) -> None:
    (workplace.folder / ".pair/knowledge/tea.md").write_text("# Tea\n\nTea is served at five in the hall.\n")
    workplace.pair("sync").succeeds()
    workplace.pair("ask", QUESTION, "--receipt", "later.json").succeeds()
    workplace.pair("rollback", "1").succeeds()
    for name in ("receipt.json", "later.json"):
        workplace.pair("check", name).succeeds()
    keep_none = {"PAIR__ENGINE__KEEP_VERSIONS": "0", "PAIR__ENGINE__KEEP_DAYS": "0"}
    workplace.pair("gc", **keep_none, PAIR__ENGINE__GC_GRACE_SECONDS="0").succeeds()
    check(workplace).succeeds()
    assert "✗ passages    [1] tea.md" in workplace.pair("check", "later.json").exits(1).stdout


def test_another_package_is_refused(workplace: Workplace, receipt: Path) -> None:
    write_files(workplace.folder / "house", {"tea.md": FILES["tea.md"] + "\nMore.\n"})
    workplace.pair("package", "house", "-o", "two.zip", "--name", "house", "--version", "2.0.0").succeeds()
    done = check(workplace, "--package", "two.zip").exits(1)
    assert "two.zip is house 2.0.0; the answer came from different content: house 1.0.0" in done.stdout


def test_what_is_not_a_receipt_is_refused(workplace: Workplace) -> None:
    write_files(workplace.folder, {"receipt.json": '{"answer": "four"}'})
    assert check(workplace, "--json").exits(2).error_code == "E251"
    workplace.pair("check", "missing.json").exits(2).says("there is no such file")
    workplace.pair("ask", "x", "--sign", "key").exits(1).says("Cannot use --sign without --receipt")
