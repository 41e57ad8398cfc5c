"""Give bad inputs to everything that takes inputs, and sort what comes back: ``python -m tests.bad_inputs``."""
