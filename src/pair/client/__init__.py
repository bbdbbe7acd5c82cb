"""A KB on a server, used as one that is opened here."""

from pair.client.remote_kb import RemoteKnowledgeBase, connect

__all__ = ["RemoteKnowledgeBase", "connect"]
