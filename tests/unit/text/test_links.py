"""Links between documents: targets, names, and texts that are not links."""

import pytest

from pair.text.entity_rules import MOST_LINKS, find_links, list_subjects


def links_in(text: str, document_id: str = "guide/start.md", title: str = "Start", url: str = "") -> list[str]:
    return find_links(document_id, title, url, [text])[0]


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("see [b](b.md)", ["guide/b.md"]),
        ("see [b](./b.md#part)", ["guide/b.md"]),
        ("see [b](B.MD?raw=1)", ["guide/b.md"]),
        ("up [top](../top.md) and [root](/other/x.md)", ["top.md", "other/x.md"]),
        ("[a](my%20file.md)", ["guide/my file.md"]),
        ("[a](<my file.md>)", ["guide/my file.md"]),
        ('[a](my file.md "A title")', ["guide/my file.md"]),
        ("[a](foo_(bar).md)", ["guide/foo_(bar).md"]),
        ("a folder: [sub](sub/)", ["guide/sub/index.md"]),
        ("without ending: [b](b)", ["guide/b.md"]),
        ("[text][Ref]\n\n[ref]: b.md 'Title'", ["guide/b.md"]),
        ("[ref][] and [c]\n\n[ref]: b.md\n[c]: <c.md>", ["guide/b.md", "guide/c.md"]),
        ("[[b]]", ["guide/b.md"]),
        ("[[Page_Name|shown]]", ["notes/page name.md"]),
        ("[[notes/Page-Name#part|shown]]", ["notes/page name.md"]),
        ("[web](HTTPS://kb.example/Docs/#top)", ["https://kb.example/docs/index.html"]),
        ("twice [b](b.md) and [b](b.md#two)", ["guide/b.md"]),
    ],
)
def test_a_link_has_a_name_of_its_target(text: str, targets: list[str]) -> None:
    names = links_in(text)
    assert len(names) == len(targets)
    for name, target in zip(names, targets, strict=True):
        assert name in list_subjects(target, "", "")


@pytest.mark.parametrize(
    "text",
    [
        "no link at all",
        "[here](#part), [itself](start.md), [itself](../guide/start.md#x) and [[Start]]",
        "![a picture](b.png)",
        "[mail](mailto:a@kb.example) [script](javascript:go)",
        "`[b](b.md)` and ``[[b]]``",
        "```md\n[b](b.md)\n```",
        "~~~\n```\n[b](b.md)\n~~~",
        "```\n[never](closed.md)",
        "[empty]() [ ] [x]",
        "[nothing][defined]",
        "[broken](http://[::1)",
    ],
)
def test_this_leads_to_no_other_document(text: str) -> None:
    assert [name for name in links_in(text) if "[::1" not in name] == []


def test_a_wiki_link_finds_a_document_by_its_title() -> None:
    assert links_in("[[how to INSTALL]]")[0] in list_subjects("x/17.md", "How to install", "")


def test_a_link_of_a_page_is_relative_to_its_address() -> None:
    page = "https://kb.example/docs/start.html"
    for names in (links_in("[b](b.html)", page), links_in("[b](b.html)", "17", url=page)):
        assert names[0] in list_subjects("https://kb.example/docs/b.html", "", "")


def test_a_code_block_continues_in_the_next_chunk() -> None:
    chunks = ["before [a](a.md)\n```\ncode", "[b](b.md)\n```", "after [c](c.md)"]
    assert find_links("x.md", "", "", chunks) == [["/a"], [], ["/c"]]


def test_a_chunk_has_few_links_whatever_it_lists() -> None:
    chunks = ["\n".join(f"- [{number}](page-{number}.md)" for number in range(10_000)), "[b](b.md)"]
    found = find_links("x.md", "", "", chunks)
    assert [len(names) for names in found] == [MOST_LINKS, 1]


def test_hostile_text_takes_no_time() -> None:
    for hostile in ("[", "[[a|", "[a](", "[a](<b", "`", "` ``", "```\n", "[a]: ", "\n[a]: x", "[x](a (b", "]("):
        links_in(hostile * 5_000)
