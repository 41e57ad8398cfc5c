"""What can be measured at a hook point of a transformer.

``run(model, batches, probe)`` gives a ``ProbeResult``; a new probe is a subclass of ``Probe``.
Importing this package loads neither TransformerLens nor pandas nor matplotlib.
"""

from probes.boundary import distance_to_boundary
from probes.causal_checks import causal_checks
from probes.cka import CKA
from probes.clustering_head import ClusteringHead
from probes.dynamics import GradientNorms, NormJacobian, WeightNorms
from probes.hooks import HookedModel, HookPoints
from probes.probe import Probe
from probes.projection import Projection
from probes.readout import Readout, all_tokens, last_token, mean, token_at
from probes.registry import RegisteredProbe, find_probe, get_probe, list_probes
from probes.result import Head, ProbeResult, load_result
from probes.run import Attached, attach, run
from probes.similarity import RBFCKA, SVCCA, NDims, NeighbourPurity
from probes.sites import Selector, Site, Sites, attention_pattern, embedding, head_output, residual, resolve
from probes.state import Rows, Sum
from probes.stores import RowStore, run_stores, save_rows
from probes.task_cluster_ari import TaskClusterARI
from probes.topic_attention import TopicAttention, TopicEmbedding

__all__ = [  # noqa: RUF022 - which would put names in capitals first
    "Attached",
    "CKA",
    "ClusteringHead",
    "GradientNorms",
    "Head",
    "HookPoints",
    "HookedModel",
    "NDims",
    "NeighbourPurity",
    "NormJacobian",
    "Probe",
    "ProbeResult",
    "Projection",
    "RBFCKA",
    "Readout",
    "RegisteredProbe",
    "RowStore",
    "Rows",
    "SVCCA",
    "Selector",
    "Site",
    "Sites",
    "Sum",
    "TaskClusterARI",
    "TopicAttention",
    "TopicEmbedding",
    "WeightNorms",
    "all_tokens",
    "attach",
    "attention_pattern",
    "causal_checks",
    "distance_to_boundary",
    "embedding",
    "find_probe",
    "get_probe",
    "head_output",
    "last_token",
    "list_probes",
    "load_result",
    "mean",
    "residual",
    "resolve",
    "run",
    "run_stores",
    "save_rows",
    "token_at",
]
