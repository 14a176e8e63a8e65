"""Causal language models and tokenizers, as both services load them."""
