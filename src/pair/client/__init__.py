"""The client of a KB on a server, with the methods of a local KB."""

from pair.client.remote_kb import RemoteKnowledgeBase, connect

__all__ = ["RemoteKnowledgeBase", "connect"]
