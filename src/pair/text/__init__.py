"""How text is read: characters, words, sentences, Markdown, key terms and entities."""
