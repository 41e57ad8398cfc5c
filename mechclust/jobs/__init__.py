"""Independent jobs over local processes or a Ray cluster, with progress."""

from mechclust.jobs.interrupts import one_interrupt
from mechclust.jobs.mapping import imap_jobs, map_jobs
from mechclust.jobs.outcome import Outcome
from mechclust.jobs.progress import close_progress_bars, progress_bar
from mechclust.jobs.ray_engine import Engine, Ray
from mechclust.jobs.sharded import run_sharded, save_rows_sharded

__all__ = [
    "Engine",
    "Outcome",
    "Ray",
    "close_progress_bars",
    "imap_jobs",
    "map_jobs",
    "one_interrupt",
    "progress_bar",
    "run_sharded",
    "save_rows_sharded",
]
