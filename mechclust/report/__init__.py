"""What studies and commands show: figures, tables, one page for a run."""

from mechclust.report.analysis import Analysis
from mechclust.report.page import render_report_page, write_report_page
from mechclust.report.panel import Panel
from mechclust.report.reading import Reading

__all__ = ["Analysis", "Panel", "Reading", "render_report_page", "write_report_page"]
