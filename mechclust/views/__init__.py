"""What a person looks at: figures, attention views, the training sandbox, reports."""

from mechclust.views.attention import AttentionView, attention_view, attention_view_from_patterns
from mechclust.views.report import render_report
from mechclust.views.sandbox import (
    Curves,
    ProbeSequences,
    SandboxRun,
    sandbox_figure,
    sandbox_film,
    sandbox_page,
    sandbox_run,
)

__all__ = [
    "AttentionView",
    "Curves",
    "ProbeSequences",
    "SandboxRun",
    "attention_view",
    "attention_view_from_patterns",
    "render_report",
    "sandbox_figure",
    "sandbox_film",
    "sandbox_page",
    "sandbox_run",
]
