"""One parser a family of document formats: text in, blocks with their places out (documents.py)."""
