"""Captions of the study's figures, by name."""

from __future__ import annotations

from mechclust.studies.clustering_heads.arm_figures import LINEAR_LOSS
from mechclust.studies.clustering_heads.config import SOLVED
from mechclust.studies.clustering_heads.drawing import SHARE_SOLVED
from mechclust.studies.clustering_heads.figures import LEAST_LOSS
from mechclust.studies.clustering_heads.graph import SHARE
from mechclust.studies.clustering_heads.intervention_figures import CUT, FLAT
from mechclust.studies.clustering_heads.results import WEAK

CAPTIONS = {
    "training": f"Test loss in the base setting, for networks above {SOLVED} accuracy at the end and for the others: "
    "median, middle half and range at each epoch (dotted: guessing); a loss below "
    f"{LEAST_LOSS:g} is drawn there. Right: accuracy of all networks at the end (dotted: {SOLVED}).",
    "heads": "Deviation of the head's weights from integers, and within-ratio of the support's multiset, against "
    "accuracy, one point per network. Lines: the detector's thresholds.",
    "spikes": "The network with the most loss spikes, among solved ones if there are any: training loss, smallest norm "
    "of xi, margin of the nearest cluster. Dots mark spikes.",
    "gradients": "Norm of the training loss's gradient by group of parameters, for the network in the first sandbox.",
    "stitching": "Networks stitched from two epochs: the head of an epoch with the final classifier, the reverse, and "
    f"both from the epoch. Dotted vertical line: the first epoch whose two parts together pass {SOLVED}. Right: when "
    f"each first passes {SOLVED} in the solved networks; above the dotted diagonal the head is first.",
    "roc": f"Share of networks above {SOLVED} detected against share of networks at {WEAK} or below detected, as the "
    "largest deviation that counts as integer varies. Points: the detector's threshold.",
    "replay": "Left: share of the loss spikes after solving that disappear when a part is frozen as it was before, "
    "mean over runs with its 95% interval, one point per run. Right: the loss before every spike, and after the step "
    "with a part frozen, as a share of the loss at the spike (1e-6 or less drawn there); bars: medians.",
    "mitigations": "Spikes after both networks of a seed have solved the task, in the base setting and with a "
    "mitigation; all seeds. Points are jittered slightly so that equal ones show.",
    "donors": "Solved networks: share of predictions that become those of a donor with a different sum and answer when "
    "the sequence embedding is the mean of the donor's class, or that of a random class of the same size.",
    "full_batch": "Full batch: training loss, and the gradient norm by layer on a linear and a logarithmic scale, up "
    "to a little after the last fall of the loss, for the first two seeds that solve the task with two or more falls "
    "(where there are fewer, those with more falls come first). Grey: where the loss falls. Linear scale: up to the "
    f"{CUT:.0%} quantile of the norms in view, the first hundredth of training left out; above each panel, the largest "
    "of them.",
    "saddle": "Full batch: training loss and the smallest eigenvalues of the Hessian over training (the scale is "
    "linear near 0), for the run with the most falls of the loss among those that solve the task. Grey: where the loss "
    "falls. Right: minus the smallest eigenvalue over the largest, median on the plateaus, and at the end, one line "
    f"per run that solves the task (the scale is linear below {FLAT:g}).",
    "starts": "Circuits at the end of training, from other initial weights: share of networks that solve the task with "
    "each kind of head. x0.1: the part's initial weights are a tenth of the base setting's.",
    "second_stage": "Left: test accuracy over training, for the feed-forward layer alone on the frozen ideal head and "
    "for the base setting with the same seeds; median, middle half and middle 80% of the networks at each epoch; "
    "dotted: guessing. Right: share of networks that have solved the task.",
    "ablations": f"Test accuracy at the end as one setting varies: every seed and their mean, and the {SHARE_SOLVED} "
    "with its 95% interval. Dotted: guessing (horizontal) and the base setting (vertical).",
    "curriculum": "Accuracy on the harder task from scratch and after p = 2 (points: one per seed; bars: "
    f"{SHARE_SOLVED}), and training loss on straight lines (median and middle half over seeds): between the two "
    "solutions, the same with the neurons of one reordered to match the other's, and from halfway to the end of each "
    f"arm. The scale of the loss is linear up to {LINEAR_LOSS:g} nats and logarithmic above.",
    "phases": "Four moments of one training: the start, the plateau before the last fall of the loss, the end of that "
    "fall, and the end. Rows: sequence embeddings (equivalent sequences share a colour), the classifier's answer for "
    "any sequence embedding, and what the feed-forward layer reads.",
    "attention": "Mean attention to every position over training, on one scale; the line marks the end of the support.",
    "graph": f"One network as a graph over training: the fewest edges of each layer that carry {SHARE:.0%} of its "
    "squared effects. An edge's effect, its width, is the standard deviation over sequences of what it adds to the "
    "node where it ends, compared with the largest of its kind at these epochs; negative ones are red. Grey positions "
    "are off the support, and faint nodes have no edge. What xi adds to the output directly is not drawn.",
    "spike": "Consecutive epochs of the largest loss spike after solving: the class map with the sequence embeddings, "
    "and what the feed-forward layer reads, on the circle of normalised vectors.",
    "ideal": "The ideal head, frozen, and the feed-forward layer that was trained on it, at the end. In the panels of "
    "normalised embeddings and values, every digit has a shade of its own, hollow for 0.",
    "sandbox": "The sandbox at the last epoch: {shown}.",
}
