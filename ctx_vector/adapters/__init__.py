"""Bridges to other packages, each behind an extra of its own; nothing here is imported by the rest.

openai    chat models behind an OpenAI-compatible address: llama.cpp, Ollama, vLLM and others
"""
