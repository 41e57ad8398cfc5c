"""What can be measured at a hook point of a transformer.

``run(model, batches, probe)`` gives a ``ProbeResult``; a new probe is a subclass of ``Probe``.
Importing this package loads neither TransformerLens nor pandas nor matplotlib.
"""

from probes.clustering import TaskClusterARI
from probes.dynamics import WeightNorms
from probes.probe import Probe
from probes.projection import Projection
from probes.readout import Readout, all_tokens, last_token, mean, token_at
from probes.result import ProbeResult
from probes.run import attach, run
from probes.sites import Selector, Site, attention_pattern, embedding, head_output, residual, resolve
from probes.state import Rows, Sum
from probes.topics import TopicAttention, TopicEmbedding

__all__ = [
    "Probe",
    "ProbeResult",
    "Projection",
    "Readout",
    "Rows",
    "Selector",
    "Site",
    "Sum",
    "TaskClusterARI",
    "TopicAttention",
    "TopicEmbedding",
    "WeightNorms",
    "all_tokens",
    "attach",
    "attention_pattern",
    "embedding",
    "head_output",
    "last_token",
    "mean",
    "residual",
    "resolve",
    "run",
    "token_at",
]
