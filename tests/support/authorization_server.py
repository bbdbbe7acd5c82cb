"""An OAuth 2.1 authorization server on loopback: metadata, registration, codes with PKCE, tokens and public keys."""

import base64
import datetime
import hashlib
import json
import secrets
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from support.listening import LoopbackServer, QuietHandler, QuietServer

_JSON = {"content-type": "application/json"}


class AuthorizationServer(LoopbackServer):
    """`with AuthorizationServer() as server: server.issuer`; `requests` lists what clients asked for."""

    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._codes: dict[str, dict[str, Any]] = {}
        owner = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                place = urlsplit(self.path)
                owner.requests.append((place.path, dict(parse_qsl(place.query))))
                documents = {
                    "/.well-known/oauth-authorization-server": owner._metadata(),
                    "/jwks.json": {"keys": [owner._public_key()]},
                }
                if place.path == "/authorize":
                    location = owner._authorize(dict(parse_qsl(place.query)))
                    self.answer(302, headers={"location": location})
                elif place.path in documents:
                    self.answer(200, json.dumps(documents[place.path]).encode(), _JSON)
                else:
                    self.answer(404)

            def do_POST(self) -> None:
                body = self.read_body().decode()
                if self.path == "/register":
                    given = json.loads(body)
                    owner.requests.append((self.path, given))
                    registered = {**given, "client_id": "client-1", "token_endpoint_auth_method": "none"}
                    self.answer(201, json.dumps(registered).encode(), _JSON)
                    return
                given = dict(parse_qsl(body))
                owner.requests.append((self.path, given))
                status, value = owner._exchange(given) if self.path == "/token" else (404, {})
                self.answer(status, json.dumps(value).encode(), _JSON)

        super().__init__(QuietServer(("127.0.0.1", 0), Handler))

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def requested(self, path: str) -> list[dict[str, Any]]:
        return [given for asked, given in self.requests if asked == path]

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "jwks_uri": f"{self.issuer}/jwks.json",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
        }

    def _public_key(self) -> dict[str, Any]:
        return {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key())), "kid": "one"}

    def _authorize(self, given: dict[str, str]) -> str:
        """Grant everything, and return the address that the browser is sent to."""
        code = secrets.token_urlsafe()
        self._codes[code] = given
        return f"{given['redirect_uri']}?{urlencode({'code': code, 'state': given['state']})}"

    def _exchange(self, given: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Return a token for a code, once, if the client proves that it asked for the code."""
        asked = self._codes.pop(given.get("code", ""), None)
        digest = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or challenge != asked["code_challenge"] or given["resource"] != asked["resource"]:
            return 400, {"error": "invalid_grant"}
        token = self.token(given["resource"], asked.get("scope", ""))
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": 300, "scope": asked.get("scope", "")}

    def token(self, audience: str, scope: str) -> str:
        expiry = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)
        claims = {"iss": self.issuer, "aud": audience, "sub": "ada", "scope": scope, "exp": expiry}
        return jwt.encode(claims, self.private, algorithm="ES256", headers={"kid": "one"})
