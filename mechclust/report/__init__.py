"""What studies and commands conclude and show: claims, figures, tables, one page for a run."""

from mechclust.report.analysis import Analysis, Panel
from mechclust.report.claims import Bound, Claim, Claims, claim, load_claims
from mechclust.report.page import render_report, write_report

__all__ = ["Analysis", "Bound", "Claim", "Claims", "Panel", "claim", "load_claims", "render_report", "write_report"]
