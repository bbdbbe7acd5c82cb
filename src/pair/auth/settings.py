"""The settings of the server: where it listens, whom it lets in, and how much at a time."""

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
    """Where `pair serve` listens, whom it lets in, how much it takes at a time, and what it does meanwhile."""

    host: str = "127.0.0.1"
    """Address to listen on; any but a loopback address needs server.auth"""
    port: Annotated[int, Ge(0), Le(65535)] = 8080
    """Port to listen on; 0 for any that is free"""
    auth: AuthKind = "none"
    """Who may come in: none (everybody on this machine), keys (made with `pair keys add`), jwt (signed tokens)"""
    keys_file: str = ".pair/keys.json"
    """Where keys are kept, hashed"""
    jwt_jwks: str = ""
    """Public keys that tokens are checked with: a JWKS file, or the https address of one"""
    jwt_issuer: str = ""
    """Who must have issued a token"""
    jwt_audience: str = ""
    """Whom a token must be meant for"""
    jwt_algorithms: str = "RS256,ES256,EdDSA"
    """Algorithms that a token may be signed with, with commas between; asymmetric ones only"""
    jwt_leeway_seconds: SecondsOrNever = 30.0
    """By how much clocks may differ"""
    trusted_proxies: str = ""
    """Addresses, with commas between, whose X-Forwarded-For is believed; empty for none"""
    cors_origins: str = ""
    """Sites whose pages may call the server, with commas between: https://app.example.com; empty for none"""
    max_body_bytes: Positive = 52_428_800
    """Longest request that stores documents; of a stream of documents, the longest line. Others have at most 1 MiB"""
    max_buffered_bytes: Positive = 209_715_200
    """Memory for the bodies of all requests together; what does not fit is refused with E617"""
    max_connections: Positive = 4_096
    """Connections at a time; a new one takes the place of the one that has waited longest for its request"""
    client_workers: Annotated[int, Gt(0), Le(64)] = 16
    """Threads, of 64, that the requests of one key or token may use at the same time; more of them wait"""
    body_timeout_seconds: Seconds = 30.0
    """In this time a request must have arrived; of a stream, its next document. A client must read as fast"""
    header_timeout_seconds: Seconds = 10.0
    """In this time the head of a request must have arrived"""
    keep_alive_seconds: Seconds = 15.0
    """How long an idle connection is kept"""
    request_timeout_seconds: Seconds = 30.0
    """How long a request that reads may take"""
    write_wait_seconds: Seconds = 30.0
    """How long a request that writes waits for others that write the same KB"""
    stop_seconds: Annotated[float, Gt(0), Le(60)] = 7.0
    """How long requests under way may take once the server is told to stop"""
    rate_limit_per_second: Annotated[float, Ge(0), Le(1_000_000)] = 0.0
    """Requests that a client may make in a second, over time; 0 for no limit"""
    rate_limit_burst: Positive = 50
    """Requests that a client may make at once before server.rate_limit_per_second counts"""
    idempotency_seconds: Seconds = 86_400.0
    """How long an Idempotency-Key is remembered"""
    sync: bool = True
    """Keep the KB `default` in line with files and links, every kb.runtime_refresh_tick_seconds"""
    compaction_interval_seconds: SecondsOrNever = 600.0
    """How often open KBs are compacted, if that is worth it; 0 for never"""
    gc_interval_seconds: SecondsOrNever = 600.0
    """How often shards that no manifest names are deleted from open KBs; 0 for never"""
    sweep_interval_seconds: SecondsOrNever = 30.0
    """How often fetched shards are evicted that are too old or too many; 0 for never"""
    prefetch_interval_seconds: SecondsOrNever = 5.0
    """How often it is looked what of open KBs should be fetched before it is asked for; 0 for never"""
    prefetch_max_bytes: Annotated[int, Ge(0)] = 1_073_741_824
    """Most bytes that are fetched before they are asked for, of one KB at a time; 0 for none"""
    mcp_write: bool = False
    """Let assistants add and delete documents over MCP, where their credentials allow writing"""
    mcp_result_tokens: Annotated[int, Ge(500), Le(100_000)] = 8_000
    """Longest result of an MCP tool, in tokens of about three bytes"""
    log_format: LogFormat = "text"
    """Log lines for people (text) or for programs (json)"""
    otlp_endpoint: str = ""
    """Where traces of questions are sent, by OTLP over HTTP: http://host:4318/v1/traces; empty for nowhere"""
