"""The settings of the server: address, authentication, limits and background jobs."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from pair.values import LONGEST_WAIT_SECONDS

Positive = Annotated[int, Gt(0)]
Seconds = Annotated[float, Gt(0), Le(LONGEST_WAIT_SECONDS)]
SecondsOrNever = Annotated[float, Ge(0), Le(LONGEST_WAIT_SECONDS)]
AuthKind = Literal["none", "keys", "jwt"]
LogFormat = Literal["text", "json"]


@dataclass(frozen=True)
class ServerSettings:
    """Settings of `pair serve`: address, authentication, limits, background jobs and logs."""

    host: str = "127.0.0.1"
    """Address to listen on. Any address other than loopback requires server.auth."""
    port: Annotated[int, Ge(0), Le(65535)] = 8080
    """Port to listen on. 0 picks a free port."""
    auth: AuthKind = "none"
    """Authentication: none (loopback only), keys (from `pair keys add`) or jwt (signed tokens)."""
    keys_file: str = ".pair/keys.json"
    """File with the hashes of the API keys."""
    jwt_jwks: str = ""
    """Public keys for tokens: a JWKS file or its https URL."""
    jwt_issuer: str = ""
    """Required issuer (`iss`) of a token."""
    jwt_audience: str = ""
    """Required audience (`aud`) of a token."""
    jwt_algorithms: str = "RS256,ES256,EdDSA"
    """Accepted signature algorithms, separated by commas. Only asymmetric algorithms are allowed."""
    jwt_leeway_seconds: SecondsOrNever = 30.0
    """Allowed clock difference when a token is checked."""
    trusted_proxies: str = ""
    """Addresses of proxies whose X-Forwarded-For header is used, separated by commas. Empty for none."""
    cors_origins: str = ""
    """Origins whose pages may call the server, separated by commas: https://app.example.com. Empty for none."""
    max_body_bytes: Positive = 52_428_800
    """Maximum size of a request that stores documents, or of one line in a stream. Other requests: 1 MiB."""
    max_buffered_bytes: Positive = 209_715_200
    """Maximum memory for all request bodies together. Requests beyond it fail with E617."""
    max_connections: Positive = 4_096
    """Maximum number of open connections. A new one then replaces the connection that has been idle longest."""
    client_workers: Annotated[int, Gt(0), Le(64)] = 16
    """Maximum number of threads, out of 64, for the requests of one key or token. Further requests wait."""
    body_timeout_seconds: Seconds = 30.0
    """Maximum time for a request body, or for the next document of a stream, and for a client to read."""
    header_timeout_seconds: Seconds = 10.0
    """Maximum time for the header of a request."""
    keep_alive_seconds: Seconds = 15.0
    """Close an idle connection after this many seconds."""
    request_timeout_seconds: Seconds = 30.0
    """Maximum time for a request that reads."""
    write_wait_seconds: Seconds = 30.0
    """Maximum time that a write waits for other writes to the same KB."""
    stop_seconds: Annotated[float, Gt(0), Le(60)] = 7.0
    """Maximum time for running requests after the server is asked to stop."""
    rate_limit_per_second: Annotated[float, Ge(0), Le(1_000_000)] = 0.0
    """Maximum request rate of a client, on average. 0 means no limit."""
    rate_limit_burst: Positive = 50
    """Number of requests that a client may make at once before server.rate_limit_per_second applies."""
    idempotency_seconds: Seconds = 86_400.0
    """Remember an Idempotency-Key for this many seconds."""
    sync: bool = True
    """Sync files and links into the KB `default`, every kb.runtime_refresh_tick_seconds."""
    compaction_interval_seconds: SecondsOrNever = 600.0
    """Compact open KBs this often, if needed. 0 means never."""
    gc_interval_seconds: SecondsOrNever = 600.0
    """Delete unreferenced shards of open KBs this often. 0 means never."""
    sweep_interval_seconds: SecondsOrNever = 30.0
    """Evict shards from the cache this often. 0 means never."""
    prefetch_interval_seconds: SecondsOrNever = 5.0
    """Check this often which shards of open KBs to download ahead of queries. 0 means never."""
    prefetch_max_bytes: Annotated[int, Ge(0)] = 1_073_741_824
    """Maximum size of the shards to download ahead of queries, for each KB. 0 means none."""
    mcp_write: bool = False
    """Let assistants add and delete documents over MCP, if their credentials allow writes."""
    mcp_result_tokens: Annotated[int, Ge(500), Le(100_000)] = 8_000
    """Maximum length of an MCP tool result, in tokens of about 3 bytes."""
    log_format: LogFormat = "text"
    """Format of log lines: text or json."""
    otlp_endpoint: str = ""
    """URL for traces of questions, OTLP over HTTP: http://host:4318/v1/traces. Empty for none."""
