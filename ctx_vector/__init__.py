"""Builds the context an LLM sees."""

__version__ = "0.1.0"
