"""What practitioners ask of their own models: one module per command."""
