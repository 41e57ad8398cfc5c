"""List the commands with their help. It imports no packages, so that help is fast."""

ABOUT = "Where inside a transformer does structure live, and when in training does it appear?"

COMMANDS = {
    "run": (
        "Run a published experiment, or resume it: `mechclust run task-clusters --preset quick`.\n\n"
        "Every setting of a study is listed by `mechclust run STUDY --help`."
    ),
    "list": "List the studies with their presets, and the probes, including those that other packages register.",
    "report": "Rewrite a run's findings, figures and report from its measurements.",
    "clusters": (
        "What a model's hidden states cluster by on your prompts, layer by layer, and how the task compares.\n\n"
        "If interrupted, run the same command again to resume."
    ),
    "topics": (
        "How far models' attention and embeddings keep words of the same topic of your corpus together.\n\n"
        "Topics are fitted once, and each model is measured beside copies with random weights. If interrupted, run the "
        "same command again to resume."
    ),
    "heads": (
        "Which role each attention head plays: previous token, first token, duplicate token, induction and others.\n\n"
        "If interrupted, run the same command again to resume."
    ),
    "compare": (
        "Which layers a tuned model changed, for which of your tasks: CKA with the model it was tuned from.\n\n"
        "To compare blocks and to patch, both models are in memory together (--no-blocks --n-patched 0: never). If "
        "interrupted, run the same command again to resume."
    ),
    "history": (
        "When in training structure appears: probes at every checkpoint, after a check that each is what it is "
        "called.\n\n"
        "One checkpoint at a time is in memory. If it is interrupted, run the same command again to resume it."
    ),
    "mossa": (
        "Train a model on many tasks, and one on each alone, and find the layers that hold them.\n\n"
        "Every setting is listed by `mechclust mossa --help`."
    ),
    "check": (
        "Check whether numbers from a model can be trusted: hooks, attention, repeatability, tokenizer.\n\n"
        "The exit code is 0 when no check failed and 1 when one did. Checks that cannot be made are listed with the "
        "reason."
    ),
    "sandbox": "Watch a model train: an interactive page (.html), a film (.mp4, .gif) or a figure (.png).",
}
"""Each command's help. Its first paragraph stands in the list of commands."""
