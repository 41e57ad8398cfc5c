"""What ``mechclust clusters`` is asked."""

from __future__ import annotations

from dataclasses import dataclass

from mechclust.commands.settings import PromptSettings, UntrainedSettings


@dataclass(frozen=True, kw_only=True)
class ClustersConfig(UntrainedSettings, PromptSettings):
    """Settings of ``mechclust clusters``; ``mechclust clusters --help`` also shows those that commands share.

    Args:
        also: further labels of the file to compare the clusters with.
        tsne: cluster after a 2-D t-SNE instead of the states as they are.
        n_init: k-means starts.
        n_permutations: random relabellings behind the null interval.
        max_rows: use at most this many prompts, chosen by their place in the file.
        seed: of k-means, t-SNE and the relabellings.
    """

    also: tuple[str, ...] = ()
    tsne: bool = False
    n_init: int = 10
    n_permutations: int = 1000
    max_rows: int | None = None
