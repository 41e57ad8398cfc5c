"""Check a probe's contract, and intervene in a model to test whether a probe's findings matter."""
