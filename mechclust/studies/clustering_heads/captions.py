"""Captions of the study's figures, by name."""

from __future__ import annotations

from mechclust.studies.clustering_heads.arm_figures import LINEAR_LOSS
from mechclust.studies.clustering_heads.config import SOLVED
from mechclust.studies.clustering_heads.drawing import SHARE_SOLVED
from mechclust.studies.clustering_heads.figures import LEAST_LOSS

CAPTIONS = {
    "training": f"Test loss in the base setting, for networks above {SOLVED} accuracy at the end and for the others: "
    "median, middle half and range at each epoch (dotted: guessing); a loss below "
    f"{LEAST_LOSS:g} is drawn there. Right: accuracy of all networks at the end (dotted: {SOLVED}).",
    "heads": "Deviation of the head's weights from integers, and within-ratio of the support's multiset, against "
    "accuracy, one point per network. Lines: the detector's thresholds.",
    "replay": "Left: share of the loss spikes after solving that disappear when a part is frozen as it was before, "
    "mean over runs with its 95% interval, one point per run. Right: the loss before every spike, and after the step "
    "with a part frozen, as a share of the loss at the spike (1e-6 or less drawn there); bars: medians.",
    "two_falls": "Full batch: a run that solves the task with two falls of the loss or more (grey), if there is one; "
    "of several, the one whose gradient norm stands out most in the falls. From left: training loss of the published "
    "run, a line through the points that its caption gives; ours, with test accuracy before and after the first and "
    "the last fall; the embeddings before and after the first fall, of all sequences, or of the training and test "
    "sequences if there are more than 4,096. Dotted: guessing.",
    "gradients": "Full batch: training loss and gradient norm by layer of one run (one that solves the task with two "
    "falls of the loss or more, if there is one; of several, the one whose gradient norm stands out most in the "
    "falls), on linear scales, to a little after the last fall. Grey: where the loss falls.",
    "ablations": f"Test accuracy at the end as one setting varies: every seed and their mean, and the {SHARE_SOLVED} "
    "with its 95% interval. Dotted: guessing (horizontal) and the base setting (vertical).",
    "curriculum": "Accuracy on the harder task from scratch and after p = 2 (points: one per seed; bars: "
    f"{SHARE_SOLVED}), and training loss on straight lines (median and middle half over seeds): between the two "
    "solutions, the same with the neurons of one reordered to match the other's, and from halfway to the end of each "
    f"arm. The scale of the loss is linear up to {LINEAR_LOSS:g} nats and logarithmic above.",
    "sandbox": "The sandbox at the last epoch: {shown}.",
}
