"""`pair diff` of versions, packages, folders and installed KBs."""

import json
from pathlib import Path

import pytest

from support.command import Workplace, write_files

TEA = "# Tea\n\nTea is served at four in the garden.\n"
LATER = "# Tea\n\nTea is served at five in the hall.\n"
SOUP = "# Soup\n\nSoup is served on Fridays.\n"
CAKE = "# Cake\n\nCake is for birthdays.\n"


@pytest.fixture
def kitchen(workplace: Workplace) -> Workplace:
    """Return a project with two versions: the second changes tea, removes soup and adds cake."""
    write_files(workplace.target, {"tea.md": TEA, "soup.md": SOUP})
    assert workplace.pair("sync").status == 0
    write_files(workplace.target, {"tea.md": LATER, "cake.md": CAKE})
    (workplace.target / "soup.md").unlink()
    assert workplace.pair("sync").status == 0
    return workplace


def documents(told: dict[str, object]) -> dict[str, str]:
    return {each["id"]: each["change"] for each in told["documents"]}  # type: ignore[attr-defined]


def test_two_versions_are_compared_with_their_entries(kitchen: Workplace) -> None:
    numbers = [each["version"] for each in kitchen.pair("versions", "--json").json["versions"]]
    shown = kitchen.pair("diff", str(numbers[-1])).exits(1)
    assert shown.stdout.startswith(f"default@{numbers[-1]} → default@{numbers[0]}: 1 added, 1 removed, 1 changed\n")
    blocks = shown.stdout.split("\n\n")[1:]
    assert [block.splitlines()[0] for block in blocks] == ["A cake.md", "D soup.md", "M tea.md"]
    assert "  +cake.md" in blocks[0]
    assert "  -soup.md" in blocks[1]
    assert "four" not in kitchen.pair("diff", str(numbers[-1]), "--stat").stdout
    told = kitchen.pair("diff", str(numbers[-1]), "current", "--text", "--json").json
    assert documents(told) == {"cake.md": "added", "soup.md": "removed", "tea.md": "changed"}
    assert told["documents"][2]["text"] == [
        "@@ -1,3 +1,3 @@",
        " # Tea",
        " ",
        "-Tea is served at four in the garden.",
        "+Tea is served at five in the hall.",
    ]
    back = kitchen.pair("diff", "current", f"default@{numbers[-1]}", "--stat", "--json").json
    assert (back["added"], back["removed"], back["changed"], "documents" in back) == (1, 1, 1, False)


def test_the_same_exits_with_0(kitchen: Workplace) -> None:
    same = kitchen.pair("diff", "current", "current")
    assert (same.status, same.stdout.rpartition(": ")[2]) == (0, "0 added, 0 removed, 0 changed\n")
    assert kitchen.pair("diff", "./.pair/knowledge", "current").status == 0
    assert kitchen.pair("diff", "current", "./.pair/knowledge", "--json").json["is_different"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "status"),
    [
        (("99",), "E218", 2),
        (("current", "--kb", "nothing"), "E201", 2),
        (("current", "other@current"), "E230", 2),
        (("kb.zip", "current"), "E230", 2),
        (("@", "current"), "E230", 2),
        (("./missing", "current"), "E231", 2),
        (("./.pair/knowledge",), "E230", 2),
        (("./broken.zip", "current"), "E009", 2),
        ((), "E402", 2),
    ],
)
def test_trouble_is_not_a_difference(kitchen: Workplace, arguments: tuple[str, ...], code: str, status: int) -> None:
    write_files(kitchen.folder, {"broken.zip": b"no zip"})
    refused = kitchen.pair("diff", *arguments, "--json")
    assert (refused.error_code, refused.status) == (code, status)


def test_files_are_compared_with_a_version_as_sync_would_read_them(kitchen: Workplace) -> None:
    folder = write_files(
        kitchen.folder / "other",
        {
            "tea.md": "\ufeff".encode() + LATER.encode(),
            "cake.md": TEA,
            "new/page.md": SOUP,
            ".hidden.md": SOUP,
            "picture.bin": b"\xff\xfe\x00\x01",
        },
    )
    told = kitchen.pair("diff", "current", f"./{folder.name}", "--json").json
    assert documents(told) == {"cake.md": "changed", "new/page.md": "added"}
    turned = kitchen.pair("diff", f"./{folder.name}", "current", "--text", "--json").json
    assert documents(turned) == {"cake.md": "changed", "new/page.md": "removed"}
    assert "+# Cake" in turned["documents"][0]["text"]


def test_packages_folders_and_installed_states_are_compared_by_their_bytes(workplace: Workplace) -> None:
    first = write_files(workplace.folder / "one", {"tea.md": TEA, "soup.md": SOUP, "logo.bin": b"\xff\x00"})
    second = write_files(workplace.folder / "two", {"tea.md": LATER, "cake.md": CAKE, "logo.bin": b"\xff\x01"})
    for folder in (first, second):
        workplace.pair("package", f"./{folder.name}", "--output", f"{folder.name}.zip", "--json").succeeds()
    expected = {"cake.md": "added", "logo.bin": "changed", "soup.md": "removed", "tea.md": "changed"}
    for a, b in (("./one.zip", "./two.zip"), ("./one", "./two.zip"), ("./one", "./two")):
        told = workplace.pair("diff", a, b, "--text", "--json")
        assert (told.status, documents(told.json)) == (1, expected)
        assert told.json["documents"][1]["text"] == []
    assert workplace.pair("diff", "./one.zip", "./one").status == 0
    assert workplace.pair("install", "--source", "./one.zip").status == 0
    write_files(workplace.target, {"mine.md": CAKE})
    assert workplace.pair("diff", "./one.zip", "./.pair/knowledge").status == 0
    write_files(workplace.target, {"tea.md": LATER})
    (workplace.target / "soup.md").unlink()
    told = workplace.pair("diff", "./one.zip", "./.pair/knowledge", "--json").json
    assert documents(told) == {"soup.md": "removed", "tea.md": "changed"}


def test_the_index_in_a_package_is_not_a_document_and_says_the_same_as_its_texts(workplace: Workplace) -> None:
    folder = write_files(workplace.folder / "one", {"tea.md": TEA, "soup.md": SOUP})
    for output, more in (("bare.zip", ()), ("indexed.zip", ("--with-index",))):
        assert workplace.pair("package", "./one", "--output", output, *more).status == 0
    assert workplace.pair("diff", "./bare.zip", "./indexed.zip").status == 0
    assert workplace.pair("install", "--source", "./indexed.zip").status == 0
    assert workplace.pair("diff", "./indexed.zip", "current").status == 0
    assert workplace.pair("diff", "./.pair/knowledge", "current").status == 0
    write_files(folder, {"manifest.json": '{"a": 1}'})
    assert documents(workplace.pair("diff", "./bare.zip", "./one", "--json").json) == {"manifest.json": "added"}


def test_long_texts_are_cut_for_people_and_whole_for_programs(workplace: Workplace, tmp_path: Path) -> None:
    for folder, word in (("one", "red"), ("two", "blue")):
        write_files(workplace.folder / folder, {"long.md": "".join(f"Line {n} is {word}.\n" for n in range(500))})
    shown = workplace.pair("diff", "./one", "./two", "--text").stdout
    assert shown.endswith("  … 801 more lines\n")
    told = json.loads(workplace.pair("diff", "./one", "./two", "--text", "--json").stdout)
    assert (len(told["documents"][0]["text"]), told["documents"][0]["left_out_lines"]) == (1001, 0)
