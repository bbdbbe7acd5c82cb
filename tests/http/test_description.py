"""The OpenAPI document is right: valid requests are answered as described, and no request breaks the server."""

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from support.operations import OPERATIONS
from support.served import Keyed, Served

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
EXAMPLES = int(os.environ.get("PAIR_TEST_EXAMPLES", "6"))


def _has_time(body: object) -> bool:
    """Return whether a question has enough time. A short timeout rightly ends in a 503."""
    context = body.get("context") if isinstance(body, dict) else None
    seconds = context.get("timeout") if isinstance(context, dict) else None
    return not isinstance(seconds, (int, float)) or seconds >= 5000 or seconds <= 0


def exercised(server: Served, route: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    method, path = route.split(" ")
    operation = schema[path][method]

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    def run(case: "schemathesis.Case[Any]") -> None:
        hypothesis.assume(_has_time(case.body))
        case.call_and_validate(base_url=server.url, checks=CHECKS)

    run()


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server for these tests only, because they store arbitrary documents."""
    with Served(tmp_path_factory.mktemp("wild") / "project", PAIR__SERVER__SYNC="false") as server:
        server.ingest({"lunch.md": "Lunch is at one."})
        yield server


@pytest.mark.parametrize("route", [operation.route for operation in OPERATIONS])
def test_a_request_that_the_document_allows_gets_the_described_response(wild: Served, route: str):
    exercised(wild, route, GenerationMode.POSITIVE)


@pytest.mark.parametrize("route", [each.route for each in OPERATIONS if each.takes_input])
def test_a_request_that_the_document_forbids_is_refused(wild: Served, route: str):
    exercised(wild, route, GenerationMode.NEGATIVE)


def walked(server: Served, key: str) -> None:
    """Follow the links of the document from response to response."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")

    class Walk(schema.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: "schemathesis.Case[Any]") -> dict[str, Any]:
            return {"headers": {"authorization": f"Bearer {key}"} if key else {}}

        def before_call(self, case: "schemathesis.Case[Any]") -> None:
            # The document cannot say how long the vectors of a KB are, nor that a text is blank only beside a vector.
            body: dict[str, Any] = case.body if isinstance(case.body, dict) else {}
            for document in body.get("documents", ()):
                if document.pop("vector", None) is not None or not document["text"]:
                    document["text"] = f"Text {document['text']}"

        def validate_response(self, response: Any, case: Any, **_more: Any) -> None:
            seen.add((case.operation.method.upper() + " " + case.operation.path, response.status_code))
            if _has_time(case.body):
                case.validate_response(response, checks=CHECKS)

    seen: set[tuple[str, int]] = set()
    Walk.run(
        settings=hypothesis.settings(
            max_examples=EXAMPLES * 6,
            stateful_step_count=6,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
    )
    assert not [each for each in seen if each[1] >= 500]
    assert ("POST /rag/ingest", 200) in seen
    assert {("GET /rag/docs/{id}", 200), ("DELETE /rag/docs/{id}", 200), ("GET /rag/docs", 200)} & seen


def test_every_way_through_the_document_holds_without_credentials(wild: Served):
    walked(wild, "")


def test_every_way_through_the_document_holds_with_credentials(locked: Keyed):
    walked(locked.server, locked.key("admin"))


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("locked") / "project"
    with Served(folder, PAIR__SERVER__SYNC="false", PAIR__SERVER__AUTH="keys") as server:
        yield Keyed(server, folder)


def test_without_credentials_everything_is_refused(keyed: Keyed):
    for operation in OPERATIONS:
        if operation.needs_credentials:
            path = operation.path.replace("{id}", "x")
            assert keyed.server.request(operation.method, path).status_code in {401, 429}
