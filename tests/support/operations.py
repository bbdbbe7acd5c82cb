"""The routes of the server, from its OpenAPI document."""

from dataclasses import dataclass
from typing import Any

from pair.app.http.app import make_api
from pair.app.http.openapi import make_document


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    described: dict[str, Any]

    @property
    def route(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def needs_credentials(self) -> bool:
        return "security" in self.described

    @property
    def takes_input(self) -> bool:
        parameters = [each for each in self.described["parameters"] if each["in"] == "query"]
        return bool(parameters) or "requestBody" in self.described

    @property
    def body_example(self) -> Any:
        return self.described["requestBody"]["content"]["application/json"]["example"]


OPERATIONS = [
    Operation(method.upper(), path, described)
    for path, methods in make_document(make_api())["paths"].items()
    for method, described in methods.items()
    if path != "/openapi.json"
]
