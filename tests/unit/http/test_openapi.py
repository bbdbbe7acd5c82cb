"""The OpenAPI document agrees with itself."""

from typing import Any

import jsonschema
import pytest

from pair.app.http.app import make_api
from pair.app.http.openapi import EXAMPLES, make_document

DOCUMENT: dict[str, Any] = make_document(make_api())


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "streams"])
def test_an_example_has_the_schema_that_it_is_an_example_of(name: str) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.validate(EXAMPLES[name], schema)


def test_every_answer_has_a_schema_and_says_what_it_holds() -> None:
    for methods in DOCUMENT["paths"].values():
        for described in methods.values():
            answer = described["responses"]["200"]
            assert len(answer["description"]) > 5
            assert all(content["schema"] for content in answer["content"].values())
            assert described["summary"]
