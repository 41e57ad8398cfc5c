"""Task clusters (Wu & Varshney): hidden states of a causal LM cluster by task."""
