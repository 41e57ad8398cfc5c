"""Attention patterns to look at, in a notebook or as a separate page."""

from mechclust.attention.view import AttentionView, attention_view, attention_view_from_patterns

__all__ = ["AttentionView", "attention_view", "attention_view_from_patterns"]
