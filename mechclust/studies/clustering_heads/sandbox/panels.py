"""Panels of the sandbox of a two-dimensional network."""

from __future__ import annotations

from mechclust.sandbox.panels import SandboxPanel

_EVERY = (
    SandboxPanel(
        "token_embeddings",
        "Token embeddings",
        "Rows of E: one point per token. The output is compared with the same rows to give the answer.",
        of="token",
    ),
    SandboxPanel(
        "position_embeddings",
        "Position embeddings",
        "Rows of P: circles are positions of the support, squares are spurious.",
        of="position",
    ),
    SandboxPanel(
        "sums",
        "Token + position",
        "E[x] + P[t]: every token at every position; circles on the support, squares off it.",
        of="pair",
    ),
    SandboxPanel(
        "normalized",
        "Normalised, with the query",
        "What attention reads, z = norm(E[x] + P[t]), and the query as an arrow: the further a point lies along "
        "it, the more attention it draws.",
        of="pair",
        background="circle",
        arrow=True,
    ),
    SandboxPanel(
        "values",
        "Values V z",
        "What each token at each position contributes; a sequence's embedding is their mean under attention.",
        of="pair",
    ),
    SandboxPanel(
        "attention",
        "Attention",
        "Weight of every position, one row per followed sequence; the line marks the end of the support.",
        kind="heat",
    ),
    SandboxPanel(
        "xi",
        "Sequence embeddings ξ",
        "One point per sequence; equivalent sequences share a colour, and a clustering head maps them to one point. "
        "Small dots are sequences of the test set.",
        background="cloud",
    ),
    SandboxPanel(
        "class_map",
        "Class map p(y | ξ)",
        "What the rest of the network answers for any ξ: the likeliest answer, paler where it is less certain.",
        points="xi",
        background="map",
    ),
    SandboxPanel(
        "xi_normalized",
        "norm(ξ)",
        "What the feed-forward layer reads: only the direction of ξ is left.",
        background="circle",
    ),
    SandboxPanel(
        "receptors",
        "Receptors",
        "The direction each feed-forward neuron reads (rows of W1), coloured by the answer it supports.",
        of="neuron",
    ),
    SandboxPanel(
        "assemblers",
        "Assemblers",
        "The direction each feed-forward neuron writes (columns of W2), coloured by the answer it supports.",
        of="neuron",
    ),
    SandboxPanel("mlp_out", "Feed-forward output", "What the feed-forward layer adds to ξ."),
    SandboxPanel(
        "output",
        "Output with residual",
        "ξ plus what the feed-forward layer adds: this is compared with the rows of E.",
    ),
    SandboxPanel(
        "level_lines",
        "Output level lines",
        "Lines of p(y) = .5 (thick), .75 and .95 over the output plane, one colour per answer, and the outputs.",
        points="output",
        background="lines",
    ),
    SandboxPanel("simplex", "Probabilities", "p(y) in a triangle; a corner means certainty.", background="triangle"),
    SandboxPanel(
        "loss",
        "Loss",
        "Mean cross-entropy in nats, logarithmic.",
        kind="curves",
        log=True,
    ),
    SandboxPanel(
        "accuracy",
        "Accuracy",
        "Share of sequences answered correctly.",
        kind="curves",
    ),
    SandboxPanel(
        "gradient_norms",
        "Gradient norms",
        "Norm of the loss's gradient by group of parameters, logarithmic.",
        kind="curves",
        log=True,
    ),
    SandboxPanel(
        "within_ratio",
        "Within-ratio",
        "Variance of ξ within clusters over its total variance: 0 if equivalent sequences share a point.",
        kind="curves",
    ),
    SandboxPanel(
        "spikes",
        "Spike diagnosis",
        "The smallest norm of ξ, where normalisation is steep, and the smallest distance of a cluster to the "
        "decision boundary; triangles are loss spikes.",
        kind="curves",
        log=True,
    ),
)
PANELS = {panel.name: panel for panel in _EVERY}
