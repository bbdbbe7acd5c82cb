"""Authentication, scopes, KBs and origins: which requests are allowed."""

import base64
import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from support.served import Keyed, Served, error_of, pair


def ask(server: Served, key: str, kb_id: str = "default") -> httpx2.Response:
    return server.post("/rag/query", {"query": "lunch", "kb_id": kb_id}, key=key)


# ── keys ───────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_key_only_the_state_and_the_description_can_be_had(keyed: Keyed):
    refused = keyed.server.get("/rag/kbs")
    assert error_of(refused) == (401, "E602")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert keyed.server.get(path).status_code == 200


def test_a_wrong_key_is_refused_and_written_nowhere(keyed: Keyed):
    key = keyed.key("read")
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    for given in (wrong, "pair_000000000000_" + "0" * 64, "nonsense", "ä"):
        headers = {"authorization": f"Bearer {given}".encode()}
        assert error_of(keyed.server.get("/rag/kbs", headers=headers)) == (401, "E602")
    basic = {"authorization": "Basic " + base64.b64encode(key.encode()).decode()}
    assert error_of(keyed.server.get("/rag/kbs", headers=basic)) == (401, "E602")
    assert ask(keyed.server, key).status_code == 200
    kept = (keyed.server.folder / ".pair" / "keys.json").read_text()
    assert key not in kept
    assert key.rpartition("_")[2] not in kept
    assert oct((keyed.server.folder / ".pair" / "keys.json").stat().st_mode & 0o777) == "0o600"
    assert wrong.rpartition("_")[2] not in keyed.server.raw_log
    assert key.rpartition("_")[2] not in keyed.server.raw_log


def test_a_key_does_what_its_scope_covers_and_no_more(keyed: Keyed):
    read, write, admin = (keyed.key(scope) for scope in ("read", "write", "admin"))
    server = keyed.server
    assert ask(server, read).status_code == 200
    assert error_of(server.ingest({"x": "No."}, key=read)) == (403, "E603")
    assert error_of(server.request("DELETE", "/rag/docs/lunch.md", key=read)) == (403, "E603")
    assert server.ingest({"x": "Yes."}, key=write).status_code == 200
    assert error_of(server.post("/rag/gc", key=write)) == (403, "E603")
    assert server.post("/rag/gc", key=admin).status_code == 200
    assert ask(server, admin).status_code == 200


def test_a_key_of_one_kb_opens_no_other(keyed: Keyed):
    server = keyed.server
    key = keyed.key("write", "mine")
    assert server.ingest({"own": "Lunch is at two."}, kb_id="mine", key=key).status_code == 200
    assert [each["id"] for each in ask(server, key, "mine").json()["results"]] == ["own"]
    assert error_of(ask(server, key)) == (403, "E603")
    assert error_of(ask(server, key, "never-made")) == (403, "E603")
    assert error_of(server.get("/metrics", key=key)) == (403, "E603")
    more = keyed.key("read", "mine")
    assert [each["kb_id"] for each in server.get("/rag/kbs", key=more).json()["kbs"]] == ["mine"]
    answer = server.post("/ask", {"query": "When is lunch?", "kb_id": "mine"}, key=more)
    assert "Lunch is at two" in answer.json()["answer"]
    assert error_of(server.post("/ask", {"query": "When is lunch?"}, key=more)) == (403, "E603")
    assert error_of(server.post("/librarians/default/ask", {"query": "Lunch?"}, key=more)) == (403, "E603")
    assert server.get("/librarians", key=more).json()["librarians"] == []


def test_a_revoked_or_expired_key_is_refused_at_once(keyed: Keyed):
    folder = keyed.server.folder
    key = pair(folder, "keys", "add", "visitor", "--kb", "default", "--days", "1")["key"]
    assert ask(keyed.server, key).status_code == 200
    listed = pair(folder, "keys", "list")["keys"]
    key_id = key.split("_")[1]
    assert {each["id"]: each["revoked_at"] for each in listed}[key_id] == ""
    assert pair(folder, "keys", "revoke", key_id)["revoked_at"]
    assert error_of(ask(keyed.server, key)) == (401, "E602")
    assert pair(folder, "keys", "revoke", "000000000000")["error"]["code"] == "E613"


def test_pages_of_other_sites_and_other_names_are_refused(plain: Served):
    foreign = {"origin": "https://elsewhere.example"}
    assert error_of(plain.post("/cache/sweep", headers=foreign)) == (403, "E603")
    assert plain.post("/cache/sweep", headers={"origin": plain.url}).status_code == 200
    assert error_of(plain.get("/rag/kbs", headers={"host": "rebound.example"})) == (403, "E603")
    assert plain.get("/rag/kbs", headers={"host": f"localhost:{plain.port}"}).status_code == 200


def test_the_pages_of_a_site_that_is_named_may_call_and_others_may_not(tmp_path: Path):
    ours, theirs = {"origin": "https://app.example"}, {"origin": "https://elsewhere.example"}
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    with Served(tmp_path, PAIR__SERVER__SYNC="false", PAIR__SERVER__CORS_ORIGINS="https://app.example/") as server:
        may = server.request("OPTIONS", "/rag/query", headers={**ours, **asks})
        assert (may.status_code, may.headers["access-control-allow-origin"]) == (204, "https://app.example")
        assert "Content-Type" in may.headers["access-control-allow-headers"]
        answer = server.get("/rag/kbs", headers=ours)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://app.example")
        assert "access-control-allow-credentials" not in answer.headers
        assert server.request("OPTIONS", "/rag/query", headers={**theirs, **asks}).status_code == 405
        refused = server.get("/rag/kbs", headers=theirs)
        assert error_of(refused) == (403, "E603")
        assert "access-control-allow-origin" not in refused.headers


def test_no_site_is_named_by_default(plain: Served):
    asks = {"origin": "https://app.example", "access-control-request-method": "POST"}
    refused = plain.request("OPTIONS", "/rag/query", headers=asks)
    assert refused.status_code == 405
    assert not [name for name in refused.headers if name.startswith("access-control-")]


def test_an_address_that_others_reach_is_not_served_without_authentication(keyed: Keyed):
    command = [sys.executable, "-m", "pair", "serve", "--host", "0.0.0.0", "--port", "0", "--json"]
    environment = {**keyed.server.environment, "PAIR__SERVER__AUTH": "none"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (1, "E401")
    assert "pair keys add" in error["suggestion"]


def test_a_port_in_use_is_reported(keyed: Keyed):
    command = [sys.executable, "-m", "pair", "serve", "--port", str(keyed.server.port), "--json"]
    done = subprocess.run(command, env=keyed.server.environment, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (3, "E612")


def test_access_to_a_kb_gives_no_access_to_a_librarian_of_the_same_name(tmp_path: Path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own.py").write_text(
        "from pair.librarians import Response\n\n\nasync def said(query):\n"
        "    return Response(answer='Everything.', confidence=0.9)\n"
    )
    (folder / "config.yaml").write_text(
        "librarians:\n  - {id: vault, function: 'own:said'}\n  - {id: cellar, function: 'os:sep'}\n"
    )
    with Served(folder, PAIR__SERVER__AUTH="keys", PAIR__SERVER__SYNC="false") as server:
        keyed = Keyed(server, folder)
        everything = keyed.key("write")
        server.ingest({"a.md": "The vault opens at nine."}, kb_id="vault", key=everything)
        asked = {"query": "What do you know?", "kb_id": "vault"}
        assert server.post("/ask", asked, key=everything).json()["answer"] == "Everything."
        assert error_of(server.post("/ask", asked, key=keyed.key("read", "vault"))) == (403, "E603")
        # A librarian that the caller may not use does not hide the librarian of a KB.
        server.ingest({"a.md": "The cellar opens at ten."}, kb_id="cellar", key=everything)
        asked |= {"query": "When does the cellar open?", "kb_id": "cellar", "at": "1"}
        assert "at ten" in server.post("/ask", asked, key=keyed.key("read", "cellar")).json()["answer"]


# ── tokens ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Issuer:
    server: Served
    private: ec.EllipticCurvePrivateKey
    public: Any

    def token(self, *, algorithm: str = "ES256", key: Any = None, kid: str = "one", **claims: Any) -> str:
        now = datetime.datetime.now(datetime.UTC)
        usual = {
            "sub": "ada",
            "iss": "https://issuer.example",
            "aud": "pair",
            "exp": now + datetime.timedelta(minutes=5),
        }
        wanted = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return jwt.encode(wanted, key or self.private, algorithm=algorithm, headers={"kid": kid})


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory, plain: Served) -> Iterator[Issuer]:
    folder = tmp_path_factory.mktemp("jwt") / "project"
    folder.mkdir()
    private = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))
    shared = {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "one"}, shared]}))
    (folder / "config.yaml").write_text(
        "librarians:\n"
        "  - id: payroll\n    kb: default\n    team: finance\n    permissions: {public: false, allowed_roles: [boss]}\n"
    )
    settings = {
        "AUTH": "jwt",
        "JWT_JWKS": "jwks.json",
        "JWT_ISSUER": "https://issuer.example",
        "JWT_AUDIENCE": "pair",
        "JWT_LEEWAY_SECONDS": "1",
        "SYNC": "false",
    }
    variables = {f"PAIR__SERVER__{name}": value for name, value in settings.items()}
    with Served(folder, PAIR__ENGINE__STORE=str(plain.folder / ".pair" / "store"), **variables) as server:
        yield Issuer(server, private, public)


def ago(minutes: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes)


def unsigned(claims: dict[str, Any]) -> str:
    parts = [json.dumps({"alg": "none", "typ": "JWT", "kid": "one"}), json.dumps(claims)]
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts) + "."


BAD: dict[str, Callable[[Issuer], str]] = {
    "expired": lambda issuer: issuer.token(exp=ago(5)),
    "not yet valid": lambda issuer: issuer.token(nbf=ago(-5)),
    "for another audience": lambda issuer: issuer.token(aud="another"),
    "of another issuer": lambda issuer: issuer.token(iss="https://elsewhere.example"),
    "without an end": lambda issuer: issuer.token(exp=None),
    "without a subject": lambda issuer: issuer.token(sub=None),
    "signed by another key": lambda issuer: issuer.token(key=ec.generate_private_key(ec.SECP256R1())),
    "of an unknown key": lambda issuer: issuer.token(kid="two"),
    "of another algorithm": lambda issuer: issuer.token(
        algorithm="RS256", key=rsa.generate_private_key(public_exponent=65537, key_size=2048)
    ),
    "unsigned": lambda issuer: unsigned(
        {"sub": "ada", "iss": "https://issuer.example", "aud": "pair", "exp": ago(-5).timestamp()}
    ),
    "signed with the public key": lambda issuer: issuer.token(algorithm="HS256", key=json.dumps(issuer.public) * 2),
    "signed with a shared secret": lambda issuer: issuer.token(algorithm="HS256", key="secret" * 10, kid="shared"),
    "no token": lambda issuer: "a.b.c",
    "too long": lambda issuer: issuer.token(note="x" * 20_000),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_a_token_is_refused_that_is(issuer: Issuer, kind: str):
    assert error_of(ask(issuer.server, BAD[kind](issuer))) == (401, "E602")


def test_a_token_gives_a_scope_and_kbs(issuer: Issuer):
    server = issuer.server
    assert ask(server, issuer.token()).status_code == 200
    assert error_of(server.ingest({"x": "No."}, key=issuer.token())) == (403, "E603")
    writing = issuer.token(scope="openid pair:write", kbs=["tokens"])
    assert server.ingest({"x": "Yes."}, kb_id="tokens", key=writing).status_code == 200
    assert error_of(ask(server, writing)) == (403, "E603")


def test_the_token_identifies_the_user_and_not_the_body(issuer: Issuer):
    claimed = {"user": {"id": "eve", "roles": ["boss"]}}
    body = {"query": "When is lunch?", "context": claimed}
    refused = issuer.server.post("/librarians/payroll/ask", body, key=issuer.token())
    assert error_of(refused) == (403, "UNAUTHORIZED")
    assert issuer.server.post("/librarians/payroll/ask", body, key=issuer.token(roles=["boss"])).status_code == 200
    listed = issuer.server.get("/librarians", key=issuer.token()).json()["librarians"]
    assert "payroll" not in {each["id"] for each in listed}
    teams = issuer.server.get("/librarians", key=issuer.token(teams=["finance"])).json()["librarians"]
    assert "payroll" in {each["id"] for each in teams}


def test_a_token_has_the_models_that_its_user_may_ask(issuer: Issuer):
    def models(token: str) -> set[str]:
        return {each["id"] for each in issuer.server.get("/v1/models", key=token).json()["data"]}

    boss, anybody = issuer.token(roles=["boss"]), issuer.token()
    assert "payroll" in models(boss)
    assert "payroll" not in models(anybody)
    body = {"model": "payroll", "messages": [{"role": "user", "content": "When is lunch?"}], "user": "boss"}
    assert issuer.server.post("/v1/chat/completions", body, key=boss).status_code == 200
    refused = issuer.server.post("/v1/chat/completions", body, key=anybody)
    assert error_of(refused) == (404, "E605")
    assert "payroll" not in refused.json()["error"]["message"].replace("'payroll'", "")
