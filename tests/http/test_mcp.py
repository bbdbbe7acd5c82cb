"""Assistants over HTTP: the official client, and invalid requests."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import TextResourceContents

from support.assistants import MODES, called, checked_tools, over_http, refusal, text_of, tokens_in
from support.served import BURST, Keyed, Served, error_of

READING = ["search", "fetch", "ask", "list_kbs", "feedback"]
LONG = "".join(f"Sentence number {number} says that soup № {number} is “hot”. " for number in range(6000))
ODD = "büro/früh?stück #1 %41.md"
CALL = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": %s}'
TALK = {"accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def writable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """Return a server with keys and tools that write."""
    folder = tmp_path_factory.mktemp("writable") / "project"
    variables = {"AUTH": "keys", "MCP_WRITE": "true", "MCP_RESULT_TOKENS": "2000", "SYNC": "false"}
    with Served(folder, **{f"PAIR__SERVER__{name}": value for name, value in variables.items()}) as server:
        keyed = Keyed(server, folder)
        key = keyed.key("write")
        assert server.ingest({"lunch.md": "Lunch is at one.", "long.md": LONG}, key=key).status_code == 200
        assert server.ingest({"secret.md": "The vault opens at nine."}, kb_id="vault", key=key).status_code == 200
        yield keyed


def post(server: Served, value: Any, *, key: str = "", headers: dict[str, str] | None = None) -> httpx2.Response:
    return server.post("/mcp", value, key=key, headers={**TALK, **(headers or {})})


def called_raw(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


# ── tools and results ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
def test_the_tools_are_few_and_always_in_the_same_order(plain: Served, mode: str):
    async def work(client: Client) -> list[Any]:
        return [(await client.list_tools()).tools for _ in range(2)]

    first, second = over_http(plain.url, work, mode=mode)
    assert first == second
    assert checked_tools(first) == READING
    assert all(tool.annotations.read_only_hint for tool in first[:4])
    assert first[4].annotations.destructive_hint is False


def test_all_tools_together_are_short_too(writable: Keyed):
    async def work(client: Client) -> list[Any]:
        return (await client.list_tools()).tools

    tools = over_http(writable.server.url, work, key=writable.key("write"))
    assert checked_tools(tools) == [*READING, "ingest", "delete"]
    writing = {tool.name: tool.annotations for tool in tools[5:]}
    assert all(each.read_only_hint is False and each.destructive_hint for each in writing.values())


def test_lists_say_how_long_they_hold_and_for_whom(plain: Served):
    async def work(client: Client) -> Any:
        return await client.list_tools()

    listed = over_http(plain.url, work, mode="2026-07-28")
    assert listed.ttl_ms > 0
    assert listed.cache_scope == "private"


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_every_earlier_version_of_the_protocol_is_spoken(plain: Served, version: str):
    about = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    begun = post(plain, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
    assert begun.json()["result"]["protocolVersion"] == version
    assert "mcp-session-id" not in begun.headers
    headers = {"mcp-protocol-version": version}
    told = post(plain, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    assert told.status_code == 202
    found = post(plain, called_raw("search", {"query": "soup", "limit": 1}), headers=headers).json()["result"]
    assert "lunch.md" in found["content"][0]["text"]


# ── what they give ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
def test_an_assistant_finds_reads_and_asks(plain: Served, mode: str):
    async def work(client: Client) -> None:
        found = await called(client, "search", query="how do I roll back?", limit=2)
        first = found["results"][0]
        assert first["id"] == first["url"] == "kb://default/deploy.md"
        assert "make rollback" in first["text"]
        read = await called(client, "fetch", id=first["id"])
        assert read["text"][first["start"] : first["end"]] == first["text"]
        assert (read["next_offset"], read["total"]) == (None, len(read["text"]))
        answer = await called(client, "ask", query="How do I roll back?")
        assert "make rollback" in answer["answer"]
        assert "[1]" in answer["answer"]
        assert answer["sources"][0]["id"] == "kb://default/deploy.md"
        assert "make rollback" in answer["sources"][0]["text"]
        assert "default" in [each["kb"] for each in (await called(client, "list_kbs"))["kbs"]]

    over_http(plain.url, work, mode=mode)


def test_an_answer_says_beside_itself_how_its_passages_were_found(plain: Served):
    async def work(client: Client) -> Any:
        return await client.call_tool("ask", {"query": "How do I roll back?"})

    answer = over_http(plain.url, work)
    (retrieval,) = answer.meta["pair/retrieval"]
    assert (retrieval["kbId"], retrieval["query"]) == ("default", "How do I roll back?")
    assert retrieval["passages"][0]["documentId"] == "deploy.md"
    assert "retrieval" not in answer.content[0].text


def test_a_filter_and_a_mode_narrow_a_search(writable: Keyed):
    async def work(client: Client) -> None:
        documents = [{"id": f"{year}.md", "text": "The yearly report.", "metadata": {"year": year}} for year in (1, 2)]
        await called(client, "ingest", documents=documents, kb="years")
        found = await called(client, "search", query="report", kb="years", mode="keyword", filter={"year": {"gte": 2}})
        assert [each["title"] for each in found["results"]] == ["2.md"]
        either = {"$or": [{"year": {"not_in": [1, 2]}}, {"$not": {"year": 2}}]}
        found = await called(client, "search", query="report", kb="years", filter=either)
        assert [each["title"] for each in found["results"]] == ["1.md"]
        assert (await refusal(client, "search", query="report", filter={"year": {"near": 2}}))["code"].startswith("E")

    over_http(writable.server.url, work, key=writable.key("write"))


def test_an_older_version_is_searched_and_its_hits_lead_to_what_was_there_then(writable: Keyed):
    async def work(client: Client) -> None:
        for colour in ("red", "green"):
            text = f"The door is {colour}. {'Paint takes time to dry. ' * 600}"
            await called(client, "ingest", documents=[{"id": "door.md", "text": text}], kb="painted")
        for at, colour in ((1, "red"), ("2", "green"), ("", "green")):
            found = await called(client, "search", query="door", kb="painted", limit=1, mode="keyword", at=at)
            address = found["results"][0]["id"]
            assert address == "kb://painted/door.md" + (f"?at={at}" if at else "")
            part = await called(client, "fetch", id=address)
            assert (part["id"], part["text"].startswith(f"The door is {colour}.")) == (address, True)
            read = (await client.read_resource(address)).contents
            assert f"door is {colour}" in read_text(read[0])
            assert ("at=" in str(read[1].uri)) == bool(at)
        for tool, asked in (
            ("search", {"query": "door", "kb": "painted", "at": 77}),
            ("fetch", {"id": "kb://painted/door.md?at=77"}),
        ):
            assert (await refusal(client, tool, **asked))["code"] == "E218"
        assert (await refusal(client, "delete", id="kb://painted/door.md?at=1"))["code"] == "E601"

    over_http(writable.server.url, work, key=writable.key("write"))


def test_a_long_document_is_read_in_parts_and_nothing_is_lost(writable: Keyed):
    async def work(client: Client) -> None:
        text, offset, parts = "", 0, 0
        while offset is not None:
            result = await client.call_tool("fetch", {"id": "kb://default/long.md", "offset": offset})
            assert tokens_in(text_of(result)) <= 2000 * 1.5
            assert len(text_of(result).encode()) <= 2000 * 3
            part = result.structured_content
            assert part["next_offset"] is None or f"offset={part['next_offset']}" in part["note"]
            text, offset, parts = text + part["text"], part["next_offset"], parts + 1
            if parts == 12:  # the rest is like it
                break
        assert LONG.startswith(text)
        last = await called(client, "fetch", id="long.md", offset=len(LONG) - 10)
        assert (last["text"], last["next_offset"]) == (LONG[-10:], None)
        assert (await called(client, "fetch", id="long.md", offset=10**9))["text"] == ""

    over_http(writable.server.url, work, key=writable.key("read"))


def test_many_long_passages_are_cut_and_the_cut_is_reported(writable: Keyed):
    async def work(client: Client) -> None:
        result = await client.call_tool("search", {"query": "hot soup sentence", "limit": 50})
        assert len(text_of(result).encode()) <= 2000 * 3
        assert "fetch" in result.structured_content["note"]
        for hit in result.structured_content["results"]:
            if hit["id"].endswith("long.md"):
                assert LONG[hit["start"] :].startswith(hit["text"])

    over_http(writable.server.url, work, key=writable.key("read"))


def test_many_calls_at_once_each_get_their_own_answer(plain: Served):
    words = {"rollback": "deploy.md", "NTP": "clocks.md", "soup": "lunch.md"}

    async def work(client: Client) -> None:
        wanted = list(words) * 7
        given = await asyncio.gather(*(client.call_tool("search", {"query": each, "limit": 1}) for each in wanted))
        for word, result in zip(wanted, given, strict=True):
            assert result.structured_content["results"][0]["id"] == f"kb://default/{words[word]}"

    over_http(plain.url, work)


# ── resources ──────────────────────────────────────────────────────────────────────────────────────


def read_text(part: Any) -> str:
    assert isinstance(part, TextResourceContents)
    return part.text


@pytest.mark.parametrize("mode", MODES)
def test_knowledge_bases_and_documents_are_resources(plain: Served, mode: str):
    async def work(client: Client) -> None:
        listed = await client.list_resources()
        assert "kb://default" in [each.uri for each in listed.resources]
        templates = (await client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == ["kb://{kb}/{id}", "kb://{kb}"]
        documents = json.loads(read_text((await client.read_resource("kb://default")).contents[0]))
        assert "kb://default/lunch.md" in [each["uri"] for each in documents["documents"]]
        [part] = (await client.read_resource("kb://default/lunch.md")).contents
        assert part.mime_type == "text/markdown"
        assert "soup" in read_text(part)
        for address, code in (
            ("kb://default/none.md", "E214"),
            ("kb://none", "E201"),
            ("kb://none/x", "E201"),
            ("file:///etc/passwd", "E601"),
            ("kb://default/lunch.md?offset=-1", "E601"),
        ):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(address)
            assert caught.value.data["code"] == code

    over_http(plain.url, work, mode=mode)


def test_a_long_resource_says_where_it_continues(writable: Keyed):
    async def work(client: Client) -> None:
        first, note = (await client.read_resource("kb://default/long.md")).contents
        assert note.uri in read_text(note)
        following = (await client.read_resource(note.uri)).contents[0]
        assert LONG.startswith(read_text(first) + read_text(following))

    over_http(writable.server.url, work, key=writable.key("read"))


# ── what goes wrong ────────────────────────────────────────────────────────────────────────────────


def test_an_error_is_a_result_with_a_code_and_a_hint(plain: Served):
    async def work(client: Client) -> None:
        assert (await refusal(client, "fetch", id="none.md"))["code"] == "E214"
        unknown = await refusal(client, "search", query="x", kb="none")
        assert unknown["code"] == "E201"
        assert unknown["suggestion"]
        assert (await refusal(client, "ask", query="x", kb="none"))["code"] == "E201"
        for name, arguments in (
            ("search", {}),
            ("search", {"query": "x", "limit": 0}),
            ("search", {"query": "x", "mode": "psychic"}),
            ("search", {"query": "x", "depth": 3}),
            ("search", {"query": ["x"]}),
            ("fetch", {"id": "lunch.md", "offset": -1}),
            ("fetch", {"id": "kb://default"}),
            ("fetch", {"id": "kb:///lunch.md"}),
        ):
            assert (await refusal(client, name, **arguments))["code"] == "E601", arguments
        assert (await refusal(client, "search", query="x", kb="../etc"))["code"] == "E212"
        assert (await refusal(client, "search", query=" "))["code"] == "E215"
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("rm", {})
        assert (await called(client, "search", query="soup", limit="1"))["results"]

    over_http(plain.url, work)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[" * 100_000,
        b"[]",
        b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/unknown"}',
        CALL % b'{"name": "search", "arguments": [1]}',
        CALL % b'{"name": "ask", "arguments": {"query": NaN}}',
        CALL % b'{"name": "ask", "arguments": {"query": "\\ud800"}}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "kb://default/%ff%00"}}',
    ],
    ids=range(10),
)
@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28", "nonsense"])
def test_no_message_breaks_the_server(plain: Served, body: bytes, version: str):
    headers = {**TALK, "content-type": "application/json", "mcp-protocol-version": version}
    answer = plain.request("POST", "/mcp", content=body, headers=headers)
    assert answer.status_code < 500
    assert answer.status_code >= 400 or "result" in answer.json() or "error" in answer.json()
    assert "INTERNAL_ERROR" not in answer.text


def _nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"and": value}
    return value


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("search", {"query": "x", "filter": _nested(300)}, "E601"),
        ("search", {"query": "x", "filter": json.dumps(_nested(300))}, "E601"),
        ("search", {"query": "x", "filter": '{"year": NaN}'}, "E601"),
        ("search", {"query": "x", "filter": '{"year": "\\ud800"}'}, "E601"),
        ("search", {"query": "x", "filter": {"year": float("nan")}}, "E601"),
        ("search", {"query": "\ud800"}, "E601"),
        ("search", {"query": "x", "filter": {"\udfff": 1}}, "E601"),
        ("search", {"query": "x", "limit": 10**40}, "E601"),
        ("fetch", {"id": "kb://default/%ff%00"}, "E214"),
        ("fetch", {"id": "x" * 20_000}, "E214"),
        ("fetch", {"id": "../../etc/passwd"}, "E214"),
    ],
    ids=range(11),
)
def test_odd_arguments_are_refused_in_few_words(plain: Served, name: str, arguments: dict[str, Any], code: str):
    about = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = called_raw(name, arguments)
    body["params"]["_meta"] = about
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
    answer = plain.request(
        "POST", "/mcp", content=json.dumps(body), headers={**TALK, **headers, "content-type": "application/json"}
    )
    result = answer.json()["result"]
    assert result["isError"]
    assert json.loads(result["content"][0]["text"])["error"]["code"] == code
    assert len(answer.content) < 4000


def test_other_methods_and_other_kinds_of_bodies_are_refused(plain: Served):
    for method in ("GET", "DELETE", "PUT"):
        refused = plain.request(method, "/mcp", headers=TALK)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    as_text = plain.request("POST", "/mcp", content=b"{}", headers={**TALK, "content-type": "text/plain"})
    assert as_text.status_code == 400
    elsewhere = post(plain, called_raw("search", {"query": "x"}), headers={"origin": "https://example.com"})
    assert elsewhere.status_code == 403


# ── who may ────────────────────────────────────────────────────────────────────────────────────────


def test_without_the_right_key_there_is_nothing(writable: Keyed):
    server = writable.server
    for key in ("", "pair_000000000000_" + "0" * 64):
        refused = post(server, called_raw("list_kbs", {}), key=key)
        assert error_of(refused) == (401, "E602")
        assert refused.headers["www-authenticate"].startswith("Bearer")

    async def work(client: Client) -> Any:
        return await client.list_tools()

    with pytest.raises(BaseExceptionGroup) as caught:
        over_http(server.url, work, key="wrong")
    assert caught.group_contains(MCPError) or caught.group_contains(httpx2.HTTPStatusError)


def test_a_key_of_some_knowledge_bases_sees_these_only(writable: Keyed):
    async def work(client: Client) -> None:
        assert [each["kb"] for each in (await called(client, "list_kbs"))["kbs"]] == ["vault"]
        assert [each.uri for each in (await client.list_resources()).resources] == ["kb://vault"]
        # Who may use one only need not name it.
        assert (await called(client, "search", query="when does it open?"))["kb"] == "vault"
        assert "nine" in (await called(client, "ask", query="When does the vault open?"))["answer"]
        for name, arguments in (
            ("search", {"query": "lunch", "kb": "default"}),
            ("ask", {"query": "lunch", "kb": "default"}),
            ("fetch", {"id": "kb://default/lunch.md"}),
            ("search", {"query": "lunch", "kb": "none"}),
        ):
            assert (await refusal(client, name, **arguments))["code"] == "E603"
        with pytest.raises(MCPError) as caught:
            await client.read_resource("kb://default/lunch.md")
        assert caught.value.data["code"] == "E603"

    over_http(writable.server.url, work, key=writable.key("read", "vault"))


def test_documents_are_written_with_permission_and_with_scope(writable: Keyed):
    async def work(client: Client) -> None:
        text = "日本語のテキスト and a naïve 👩‍🚀.\n<script>alert(1)</script>"
        stored = await called(client, "ingest", documents=[{"id": ODD, "text": text, "title": "<b>Frühstück</b>"}])
        assert stored["stored"] == 1
        [address] = stored["ids"]
        found = await called(client, "search", query="naïve Frühstück", limit=1)
        assert [(each["id"], each["title"]) for each in found["results"]] == [(address, "<b>Frühstück</b>")]
        assert (await called(client, "fetch", id=address))["text"] == text
        assert (await called(client, "fetch", id=ODD))["id"] == address
        assert read_text((await client.read_resource(address)).contents[0]) == text
        unnamed = await called(client, "ingest", documents=[{"text": "Without an id."}])
        assert (await called(client, "delete", id=unnamed["ids"][0]))["deleted"] == 1
        assert (await called(client, "delete", id=ODD))["deleted"] == 1
        assert (await refusal(client, "delete", id=ODD))["code"] == "E214"
        assert (await refusal(client, "ingest", documents=[{"id": "x", "text": " "}]))["code"] == "E213"
        assert (await refusal(client, "ingest", documents=[]))["code"] == "E601"

    over_http(writable.server.url, work, key=writable.key("write"))


async def _refused_to_write(client: Client) -> None:
    assert [tool.name for tool in (await client.list_tools()).tools] == READING
    for name, arguments in (("ingest", {"documents": [{"id": "x", "text": "No."}]}), ("delete", {"id": "lunch.md"})):
        error = await refusal(client, name, **arguments)
        assert error["code"] == "E603"
        assert "mcp_write" in error["suggestion"]
    assert (await called(client, "fetch", id="lunch.md"))["text"]
    assert (await refusal(client, "fetch", id="x"))["code"] == "E214"


def test_a_key_that_may_read_only_is_not_shown_what_writes(writable: Keyed):
    over_http(writable.server.url, _refused_to_write, key=writable.key("read"))


def test_a_write_without_permission_changes_nothing(plain: Served):
    over_http(plain.url, _refused_to_write)


def test_limits_and_the_log_are_those_of_all_routes(keyed: Keyed):
    key = keyed.key("read")
    question = called_raw("fetch", {"id": "none.md"})
    answer = post(keyed.server, question, key=key, headers={"x-request-id": "mcp-1"})
    assert answer.headers["x-request-id"] == "mcp-1"
    logged = keyed.server.logged_request("mcp-1")
    assert (logged["tool"], logged["error"], logged["kb_id"]) == ("fetch", "E214", "default")
    assert logged["user"]
    assert error_of(post(keyed.server, called_raw("search", {"query": "x" * 30_000}), key=key)) == (413, "E607")
    statuses = [
        post(keyed.server, {"jsonrpc": "2.0", "id": 1, "method": "ping"}, key=key).status_code for _ in range(BURST)
    ]
    assert statuses[0] == 200
    assert statuses[-1] == 429


def test_an_answer_has_the_outcome_that_its_librarian_reports(tmp_path: Path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own.py").write_text(
        "from pair.librarians import Response\n\n\n"
        "async def reply(query: str) -> Response:\n"
        "    return Response(answer='No passage is about it.', metadata={'outcome': 'nothing'})\n"
    )
    (folder / "config.yaml").write_text("librarians:\n  - {id: vault, function: 'own:reply'}\n")

    async def work(client: Client) -> Any:
        return await called(client, "ask", query="What is new?", kb="vault")

    with Served(folder, PAIR__SERVER__SYNC="false") as server:
        server.ingest({"a.md": "The vault opens at nine."}, kb_id="vault")
        assert over_http(server.url, work)["outcome"] == "nothing"
        answer = server.post("/librarians/vault/ask", {"query": "What is new?"}).json()
        assert answer["metadata"]["outcome"] == "nothing"


# ── subscriptions ──────────────────────────────────────────────────────────────────────────────────


def test_a_client_hears_of_a_new_version_of_a_kb_and_of_a_document(writable: Keyed):
    server, key = writable.server, writable.key("write")
    server.ingest({"a.md": "The gate opens at nine.", "b.md": "The wall is high."}, kb_id="watched", key=key)
    watched = ["kb://watched", "kb://watched/a.md", "kb://watched/b.md"]

    async def work(client: Client) -> list[str]:
        async with client.listen(resource_subscriptions=watched) as events:
            await asyncio.to_thread(server.ingest, {"a.md": "The gate opens at ten."}, kb_id="watched", key=key)
            return sorted([(await anext(events)).uri, (await anext(events)).uri])  # type: ignore[union-attr]

    assert over_http(server.url, work, key=key, mode="2026-07-28") == watched[:2]


@pytest.mark.parametrize("uri", ["kb://vault", "kb://vault/secret.md", "https://example.com"])
def test_a_resource_that_the_caller_may_not_read_is_not_watched(writable: Keyed, uri: str):
    async def work(client: Client) -> None:
        with pytest.raises(MCPError):
            async with client.listen(resource_subscriptions=[uri]) as events:
                await anext(events)

    over_http(writable.server.url, work, key=writable.key("read", "default"), mode="2026-07-28")
