"""Probes: measurements at the hook points of a transformer.

``run(model, batches, probe)`` gives a ``ProbeResult``. A new probe is a subclass of ``Probe``. Importing this package
loads neither TransformerLens nor pandas nor matplotlib nor scikit-learn.
"""

from probes import shadowing  # noqa: F401 - first: it refuses files that stand in the way of ours

# isort: split
from tasks.garbage_collection import paused_collection

with paused_collection():  # torch is imported here
    from probes.attention_entropy import AttentionEntropy
    from probes.checks.causal_checks import causal_checks
    from probes.checks.head_attribution import head_attribution
    from probes.checks.interchange import interchange, interchange_together
    from probes.cka import CKA
    from probes.clustering_head import ClusteringHead
    from probes.distance_matched_topic_attention import DistanceMatchedTopicAttention
    from probes.engine.attach import Attached, attach
    from probes.engine.attention import Attention, AttentionReadout
    from probes.engine.head_names import Head
    from probes.engine.hooked_model import HookedModel, HookPoints
    from probes.engine.moments import Moments
    from probes.engine.preprocess import Preprocess
    from probes.engine.probe import Probe
    from probes.engine.readout import Readout, all_tokens, first_token, last_token, mean, token_at
    from probes.engine.record import record
    from probes.engine.registry import RegisteredProbe, find_probe, get_probe, list_probes
    from probes.engine.result import ProbeResult, load_result
    from probes.engine.run import run
    from probes.engine.sites import (
        Selector,
        Site,
        Sites,
        attention,
        attention_pattern,
        embedding,
        head_output,
        residual,
        resolve,
    )
    from probes.engine.state import Rows, Sum
    from probes.head_roles import HeadRoles
    from probes.linear_decodability import LinearDecodability
    from probes.logit_lens import LogitLens
    from probes.n_dims import NDims
    from probes.neighbour_purity import NeighbourPurity
    from probes.norm_jacobian import NormJacobian
    from probes.projection import Projection
    from probes.rbf_cka import RBFCKA
    from probes.rows.collect import collect_rows
    from probes.rows.row_source import RowSource
    from probes.rows.row_store import RowStore
    from probes.rows.rows_from import ForeignRows, rows_from
    from probes.rows.run_stores import run_stores
    from probes.rows.save import save_rows
    from probes.store.index_set import IndexSet
    from probes.svcca import SVCCA
    from probes.task_cluster_ari import TaskClusterARI
    from probes.topic_attention import TopicAttention
    from probes.topic_embedding import TopicEmbedding

__all__ = [  # noqa: RUF022 - which would put names in capitals first
    "Attached",
    "Attention",
    "AttentionEntropy",
    "AttentionReadout",
    "CKA",
    "ClusteringHead",
    "DistanceMatchedTopicAttention",
    "ForeignRows",
    "Head",
    "HeadRoles",
    "HookPoints",
    "HookedModel",
    "IndexSet",
    "LinearDecodability",
    "LogitLens",
    "Moments",
    "NDims",
    "NeighbourPurity",
    "NormJacobian",
    "Preprocess",
    "Probe",
    "ProbeResult",
    "Projection",
    "RBFCKA",
    "Readout",
    "RegisteredProbe",
    "RowSource",
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
    "all_tokens",
    "attach",
    "attention",
    "attention_pattern",
    "causal_checks",
    "collect_rows",
    "embedding",
    "find_probe",
    "first_token",
    "get_probe",
    "head_attribution",
    "head_output",
    "interchange",
    "interchange_together",
    "last_token",
    "list_probes",
    "load_result",
    "mean",
    "record",
    "residual",
    "resolve",
    "rows_from",
    "run",
    "run_stores",
    "save_rows",
    "token_at",
]
