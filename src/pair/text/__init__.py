"""Text analysis: characters, words, sentences, Markdown, key terms and entities."""
