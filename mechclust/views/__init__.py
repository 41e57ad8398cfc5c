"""What a person looks at: figures, attention views, reports."""

from mechclust.views.attention import AttentionView, attention_view, attention_view_from_patterns
from mechclust.views.report import render_report

__all__ = ["AttentionView", "attention_view", "attention_view_from_patterns", "render_report"]
