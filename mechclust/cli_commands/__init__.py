"""The commands of the command line, one per file. Only the requested one is imported."""
