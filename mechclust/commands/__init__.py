"""Questions of practitioners about their models: one module per command."""
