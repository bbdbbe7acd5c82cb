"""Tokens: verification with public keys from a file or a URL, and changes of these keys."""

import dataclasses
import functools
import itertools
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from pair import errors
from pair.auth.settings import ServerSettings
from pair.auth.tokens import TokenVerifier
from pair.kb.trust import verifier
from pair.settings import Settings
from pair.testing.clock import ManualClock
from support.server import Page, Server

POLICY = ServerSettings(auth="jwt", jwt_jwks="jwks.json", jwt_issuer="issuer", jwt_audience="pair")


NEEDED = ("jwt_jwks", "jwt_issuer", "jwt_audience")


class Issuer:
    def __init__(self, *names: str) -> None:
        self.keys = {name: ed25519.Ed25519PrivateKey.generate() for name in names}
        self.reads = 0

    def jwks(self) -> bytes:
        self.reads += 1
        listed = [{**self._public(key), "kid": name} for name, key in self.keys.items()]
        return json.dumps({"keys": listed}).encode()

    def _public(self, key: ed25519.Ed25519PrivateKey) -> dict[str, Any]:
        written: dict[str, Any] = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key()))
        return written

    def token(self, kid: str, **claims: Any) -> str:
        usual = {"sub": "ada", "iss": "issuer", "aud": "pair", "exp": time.time() + 60, **claims}
        return jwt.encode(usual, self.keys[kid], algorithm="EdDSA", headers={"kid": kid} if kid else {})


def test_new_keys_are_found_but_not_looked_for_all_the_time():
    issuer, clock = Issuer("one"), ManualClock()
    verifier = TokenVerifier(POLICY, issuer.jwks, clock)
    found = verifier.authenticate(
        issuer.token("one", teams=["a"], roles="r", scope="pair:admin x", email="a@example.org")
    )
    assert (found.id, found.scope, found.kbs, found.email) == ("ada", "admin", None, "a@example.org")
    assert (found.teams, found.roles) == (("a",), ("r",))
    issuer.keys["two"] = ed25519.Ed25519PrivateKey.generate()
    for _ in range(3):
        with pytest.raises(errors.AccessError):
            verifier.authenticate(issuer.token("two"))
    assert issuer.reads == 1
    clock.advance(31)
    assert verifier.authenticate(issuer.token("two", kbs=["a"], scope=["read"])).kbs == frozenset({"a"})
    assert issuer.reads == 2
    token = issuer.token("one")
    del issuer.keys["one"]
    assert verifier.authenticate(token).id == "ada"
    clock.advance(301)
    with pytest.raises(errors.AccessError):
        verifier.authenticate(token)


def test_keys_of_other_kinds_are_left_out_and_a_broken_document_is_not_the_fault_of_a_token():
    issuer = Issuer("one")
    document = json.loads(issuer.jwks())
    document["keys"] += [{"kty": "strange", "kid": "two"}, {"kty": "oct", "kid": "three", "k": "c2VjcmV0"}]
    whole = json.dumps(document).encode()
    assert TokenVerifier(POLICY, lambda: whole, ManualClock()).authenticate(issuer.token("one")).id == "ada"
    for broken in (b"", b"[]", b'{"keys": 7}'):
        with pytest.raises(errors.StorageError):
            TokenVerifier(POLICY, functools.partial(bytes, broken), ManualClock()).authenticate(issuer.token("one"))


def test_a_token_without_the_name_of_a_key_means_the_only_one():
    issuer = Issuer("")
    assert TokenVerifier(POLICY, issuer.jwks, ManualClock()).authenticate(issuer.token("")).id == "ada"


@pytest.mark.parametrize("algorithms", ["HS256", "none", "RS256,HS512", "", "rs256"])
def test_algorithms_that_share_a_secret_cannot_be_configured(algorithms: str):
    with pytest.raises(errors.UsageError, match="jwt_algorithms"):
        TokenVerifier(dataclasses.replace(POLICY, jwt_algorithms=algorithms), bytes, ManualClock())


@pytest.mark.parametrize("name", NEEDED)
def test_the_settings_that_tokens_are_checked_against_are_required(name: str):
    settings = Settings.load(environment={f"PAIR__SERVER__{key}".upper(): "x" for key in NEEDED if key != name})
    with pytest.raises(errors.UsageError, match=name):
        TokenVerifier(settings.server, bytes, ManualClock())


def test_keys_come_from_an_address(server: Server):
    issuer = Issuer("one")
    server.pages["/jwks"] = Page(issuer.jwks())
    settings = Settings(server=dataclasses.replace(POLICY, jwt_jwks=server.url("/jwks")))
    verify = verifier(settings)
    assert verify is not None
    assert verify(issuer.token("one")).id == "ada"
    away = verifier(Settings(server=dataclasses.replace(POLICY, jwt_jwks=server.url("/absent"))))
    assert away is not None
    with pytest.raises(errors.StorageError):
        away(issuer.token("one"))
    for address in ("http://issuer.example/jwks", "https://["):
        with pytest.raises(errors.UsageError, match=r"server\.jwt_jwks"):
            verifier(Settings(server=dataclasses.replace(POLICY, jwt_jwks=address)))


def test_an_empty_list_of_keys_is_not_read_again_for_every_token():
    issuer, unknown = Issuer(), Issuer("one")
    verifier = TokenVerifier(POLICY, issuer.jwks, ManualClock())
    for _ in range(50):
        with pytest.raises(errors.AccessError):
            verifier.authenticate(unknown.token("one"))
    assert issuer.reads == 1


def test_keys_that_cannot_be_read_are_asked_for_less_and_less_often():
    issuer, clock, reads = Issuer("one"), ManualClock(), list[float]()

    def broken() -> bytes:
        reads.append(clock.monotonic())
        return b"{}"

    verifier = TokenVerifier(POLICY, broken, clock)
    for _ in range(200):
        with pytest.raises(errors.StorageError):
            verifier.authenticate(issuer.token("one"))
        clock.advance(1)
    pauses = [later - earlier for earlier, later in itertools.pairwise(reads)]
    assert pauses[:5] == [2, 4, 8, 16, 30]
    assert set(pauses[5:]) == {30}


def test_a_verifier_that_may_not_read_keys_says_when_it_needs_them():
    issuer, clock = Issuer("one"), ManualClock()
    verifier = TokenVerifier(POLICY, issuer.jwks, clock)
    token = issuer.token("one")
    with pytest.raises(errors.StorageError):
        verifier.authenticate(token, may_read=False)
    assert verifier.needs_keys(token)
    verifier.read_keys()
    assert not verifier.needs_keys(token)
    assert verifier.authenticate(token, may_read=False).id == "ada"
    clock.advance(301)
    assert verifier.needs_keys(token)
    assert verifier.authenticate(token, may_read=False).id == "ada"
    assert issuer.reads == 1


@pytest.mark.parametrize(
    ("scope", "given"),
    [
        ("admin", "read"),
        ("openid write admin", "read"),
        (["admin", "write"], "read"),
        ("PAIR:admin", "read"),
        ("pair:write admin", "write"),
        (["pair:admin"], "admin"),
        ("pair:pair:admin", "read"),
    ],
)
def test_a_scope_counts_only_with_the_prefix_of_pair(scope: Any, given: str):
    issuer = Issuer("one")
    principal = TokenVerifier(POLICY, issuer.jwks, ManualClock()).authenticate(issuer.token("one", scope=scope))
    assert principal.scope == given
