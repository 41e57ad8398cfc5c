"""What practitioners ask of their own models: one room a command."""
