"""Examples of requests and answers, for the OpenAPI document: a test compares their keys with real ones."""

from typing import Any

Json = dict[str, Any]

WITH_ANY_KEYS = frozenset({"metadata", "route_stats", "evictions", "states", "run"})
"""Keys whose values are objects with keys of their own choice."""

_DEPLOY = "Deploy on Tuesdays. Roll back with `make rollback`."
BODIES: Json = {
    "IngestRequest": {
        "kb_id": "default",
        "documents": [
            {
                "id": "guides/deploy.md",
                "text": _DEPLOY,
                "title": "Deploying",
                "url": "https://example.com/deploy",
                "metadata": {"year": 2026},
            }
        ],
    },
    "QueryRequest": {
        "query": "how do I roll back?",
        "k": 3,
        "search_mode": "hybrid",
        "filter": {"year": {"gte": 2020}},
    },
    "RollbackRequest": {"kb_id": "default", "version": 6},
    "CompactRequest": {"kb_id": "default"},
    "GcRequest": {"kb_id": "default", "grace_seconds": 120},
    "SweepRequest": {},
    "AskRequest": {"query": "how do I roll back?", "context": {"timeout": 10000}},
    "SyncRequest": {"wait": True},
    "ChatRequest": {"model": "pair", "messages": [{"role": "user", "content": "how do I roll back?"}]},
}
"""Of requests, by the names of their schemas."""
INGESTED: Json = {
    "status": "ok",
    "kb_id": "default",
    "ingested_docs": 1,
    "ingested_chunks": 1,
    "replaced_docs": 0,
    "unchanged_docs": 0,
    "manifest_version": 7,
    "doc_ids": ["guides/deploy.md"],
}
FOUND: Json = {
    "kb_id": "default",
    "search_mode": "hybrid",
    "mode_used": "hybrid",
    "took_ms": 1.9,
    "manifest_version": 7,
    "partial": False,
    "results": [
        {
            "id": "guides/deploy.md",
            "chunk_id": "guides/deploy.md#0",
            "title": "Deploying",
            "url": "https://example.com/deploy",
            "content": "Deploy on Tuesdays. Roll back with `make rollback`.",
            "score": 0.83,
            "distance": 0.61,
            "graph_score": None,
            "metadata": {"year": 2026},
            "start": 0,
            "end": 51,
            "also_in": [],
            "highlights": [[20, 29]],
        }
    ],
}
KBS: Json = {
    "kbs": [
        {
            "kb_id": "default",
            "documents": 1,
            "chunks": 1,
            "shards": 1,
            "size_bytes": 40960,
            "deleted_documents": 0,
            "manifest_version": 7,
            "embedder": "static-wordllama-l2_supercat-256-64b47a2d",
            "dimension": 256,
            "cache": {"hits": 3, "misses": 1, "evictions": 0, "bytes_fetched": 40960, "size_bytes": 40960},
            "compaction_debt": "",
        }
    ]
}
_LISTED: Json = {
    "id": "guides/deploy.md",
    "title": "Deploying",
    "url": "https://example.com/deploy",
    "owner": "ingest",
    "metadata": {"year": 2026},
    "chunks": 1,
    "content_hash": "0a1b",
}
DOCUMENTS: Json = {"kb_id": "default", "documents": [_LISTED], "next": None}
DOCUMENT: Json = {"kb_id": "default", **_LISTED, "text": "Deploy on Tuesdays. Roll back with `make rollback`."}
GRAPH: Json = {
    "kb_id": "default",
    "document": "guides/deploy.md",
    "entity": "",
    "entities": [{"name": "tuesday", "weight": 0.8, "chunks": 3}, {"name": "rollback", "weight": 0.3, "chunks": 1}],
    "edges": [{"source": "rollback", "target": "tuesday", "kind": "together", "weight": 0.3}],
    "documents": [{"id": "guides/week.md", "title": "The week", "weight": 1.0, "entities": ["tuesday"]}],
}
SYNC: Json = {
    "enabled": True,
    "run": {"interval_seconds": 300.0, "running": False, "runs": 4, "failures": 0, "last_error": ""},
    "states": {"current": 42, "failing": 1},
    "sources": [
        {
            "source_id": "https://example.com/deploy",
            "kind": "url",
            "state": "failing",
            "reason": "HTTP 503",
            "seen_at": "2026-01-31T12:00:00Z",
            "next_check_at": "2026-01-31T13:00:00Z",
            "fetch_status": "error",
        }
    ],
    "next": None,
}
DELETED: Json = {"status": "ok", "kb_id": "default", "deleted": 1, "manifest_version": 8}
VERSIONS: Json = {
    "kb_id": "default",
    "versions": [
        {
            "version": 7,
            "created_at": "2026-01-31T12:00:00+00:00",
            "made_by": "upsert",
            "documents": 12,
            "chunks": 40,
            "shards": 2,
            "size_bytes": 81920,
            "embedder": "static-wordllama-l2_supercat-256-64b47a2d",
            "label": "handbook 1.2.0",
            "restored": 0,
            "current": True,
        }
    ],
    "may_roll_back": False,
}
DIFF: Json = {
    "kb_id": "default",
    "a": 6,
    "b": 7,
    "added": 0,
    "removed": 0,
    "changed": 1,
    "documents": [
        {
            "id": "guides/deploy.md",
            "change": "changed",
            "entry": ["@@ -1,2 +1,2 @@", " guides/deploy.md", "-Deploy on Mondays.", "+Deploy on Tuesdays."],
            "text": ["@@ -1 +1 @@", "-Deploy on Mondays.", "+Deploy on Tuesdays."],
            "left_out_lines": 0,
        }
    ],
    "next": None,
}
ROLLED_BACK: Json = {
    "status": "ok",
    "kb_id": "default",
    "restored": 6,
    "manifest_version": 8,
    "documents": 12,
    "embedder": "static-wordllama-l2_supercat-256-64b47a2d",
    "label": "handbook 1.2.0",
    "changed": True,
}
COMPACTED: Json = {
    "status": "ok",
    "kb_id": "default",
    "reason": "many_shards",
    "shards_before": 9,
    "shards_after": 1,
    "documents": 1200,
    "manifest_version": 9,
    "conflicts": 0,
}
COLLECTED: Json = {
    "status": "ok",
    "kb_id": "default",
    "deleted_shards": 9,
    "deleted_bytes": 368640,
    "kept_shards": 0,
    "kept_versions": 3,
    "manifest_version": 10,
}
SWEPT: Json = {"status": "ok", "evicted_ttl": 0, "evicted_size": 2, "freed_bytes": 81920, "kept_bytes": 40960}
LIBRARIANS: Json = {
    "first": "default",
    "librarians": [
        {
            "id": "default",
            "name": "default",
            "description": "Answers from the knowledge base default.",
            "answers_from": "kb default",
            "public": True,
        }
    ],
}
RESPONSE: Json = {
    "answer": "Roll back with `make rollback`. [1]",
    "sources": [{"name": "Deploying", "url": "https://example.com/deploy", "type": "document"}],
    "confidence": 0.71,
    "partial": False,
    "metadata": {"librarian": "default", "delegationChain": ["default"], "delegated": False},
}
SYNCED: Json = {
    "status": "ok",
    "kb_id": "default",
    "added": 1,
    "changed": 0,
    "removed": 0,
    "unchanged": 11,
    "fetched": 0,
    "not_modified": 2,
    "failed": 0,
    "pending": 0,
    "model_calls": 0,
    "bytes_read": 1830,
    "seconds": 0.4,
    "problems": [],
    "skipped": [],
    "errors": [],
    "stored": 1,
    "unstored": 0,
    "held_at": 0,
}
_MODEL: Json = {"id": "default", "object": "model", "created": 1769860800, "owned_by": "pair"}
MODELS: Json = {"object": "list", "data": [_MODEL]}
MODEL = _MODEL
_CHAT_HEAD: Json = {
    "id": "chatcmpl-0a1b",
    "object": "chat.completion",
    "created": 1769860800,
    "model": "pair",
    "system_fingerprint": "pair-0.1.0-manifest-7",
}
COMPLETION: Json = {
    **_CHAT_HEAD,
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "> Roll back with `make rollback`. [1]\n\nSources:\n\n- [1] Deploying <https://example.com/deploy>",
                "refusal": None,
                "annotations": [
                    {
                        "type": "url_citation",
                        "url_citation": {
                            "start_index": 34,
                            "end_index": 37,
                            "title": "Deploying",
                            "url": "https://example.com/deploy",
                        },
                    }
                ],
            },
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 23, "total_tokens": 28},
    "sources": [{"name": "Deploying", "url": "https://example.com/deploy", "type": "document"}],
    "confidence": 0.71,
    "partial": False,
    "librarian": "default",
}
PROMETHEUS = (
    "# TYPE pair_http_requests_total counter\n"
    'pair_http_requests_total{method="GET",route="/healthz",status="200"} 1.0\n'
)
OPENMETRICS = '# TYPE pair_shard_count gauge\npair_shard_count{kb_id="default"} 1.0\n# EOF\n'
FIGURES: Json = {
    "route_stats": {
        "POST /rag/query": {
            "count": 1,
            "error_count": 0,
            "latency_sum_ms": 2.1,
            "latency_min_ms": 2.1,
            "latency_max_ms": 2.1,
        }
    },
    "query_stats": {},
    "ingest_stats": {},
    "embed_stats": {},
    "librarian_stats": {},
    "refused": {},
    "cache": {"evictions": {}, "budget_exceeded": 0, "prefetched_files": 0, "prefetched_bytes": 0},
    "recent_requests": [],
    "kbs": {},
    "care": {},
    "librarians": {},
    "background": {},
    "runtime": {"peak_memory_bytes": 90000000, "cpu_seconds": 1.2, "threads": 9, "num_gc": 40, "processors": 2},
    "uptime_seconds": 12.5,
    "start_time": "2026-01-31T12:00:00Z",
}
_INGESTED_LINES = (
    '{"type":"progress","doc_ids":["guides/deploy.md"],"ingested_docs":1,"ingested_chunks":1,"replaced_docs":0,'
    '"unchanged_docs":0,"manifest_version":7}\n'
    '{"type":"result","status":"ok","kb_id":"default","ingested_docs":1,"ingested_chunks":1,"replaced_docs":0,'
    '"unchanged_docs":0,"manifest_version":7}\n'
)
_EVENTS = 'event: text\ndata: {"text":"Roll back with"}\n\nevent: response\ndata: {"answer":"Roll back with …"}\n\n'
_CHUNKS = (
    'data: {"id":"chatcmpl-0a1b","object":"chat.completion.chunk","created":1769860800,"model":"pair",'
    '"system_fingerprint":"pair-0.1.0","choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    '"logprobs":null,"finish_reason":null}]}\n\ndata: [DONE]\n\n'
)
STREAMS: dict[str, dict[str, str]] = {
    "POST /rag/ingest": {"application/x-ndjson": _INGESTED_LINES},
    "POST /ask": {"text/event-stream": _EVENTS},
    "POST /librarians/{id}/ask": {"text/event-stream": _EVENTS},
    "POST /v1/chat/completions": {"text/event-stream": _CHUNKS},
}
"""Of answers in other media types, by their routes."""
