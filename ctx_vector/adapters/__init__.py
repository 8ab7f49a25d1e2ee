"""Bridges to other packages, each behind an extra of its own; nothing here is imported by the rest.

openai        chat models behind an OpenAI-compatible address: llama.cpp, Ollama, vLLM and others
langchain     a retriever, a chat message history, a document compressor
llama_index   a retriever, a node postprocessor, a memory block
haystack      a retriever and a ranker
hello_agents  our tools in its registry, its tools as sources of a build, messages both ways

Importing one without its package raises OptionalDependencyError, which names the extra.
"""
