"""How a source is described: by rules alone, or by a language model behind an OpenAI-compatible server."""
