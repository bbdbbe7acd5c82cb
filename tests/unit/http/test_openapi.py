"""The OpenAPI document is consistent and complete."""

from typing import Any

import jsonschema
import pytest

from pair.app.http.app import make_api
from pair.app.http.openapi import DESCRIPTIONS, EXAMPLES, make_document

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


def test_every_field_and_parameter_is_described() -> None:
    fields = [
        field
        for schema in DOCUMENT["components"]["schemas"].values()
        for field in schema.get("properties", {}).values()
    ]
    operations = [operation for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    parameters = [parameter for operation in operations for parameter in operation["parameters"]]
    assert all(described["description"].endswith(".") for described in [*fields, *parameters])


def test_every_description_describes_something() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    operations = [operation for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    used = {f"{schema}.{field}" for schema in schemas for field in schemas[schema].get("properties", {})}
    used |= {f"{one['operationId']}.{parameter['name']}" for one in operations for parameter in one["parameters"]}
    named = {*DESCRIPTIONS["fields"]}
    assert {name for name in named if "." in name} <= used
    assert {name for name in named if "." not in name} <= {name.partition(".")[2] for name in used}
    assert {*DESCRIPTIONS["responses"]} <= {*schemas, *(operation["operationId"] for operation in operations)}
