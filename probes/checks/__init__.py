"""Check a probe's contract, and change a model to see whether what a probe found matters."""
