"""The commands of the command line, one per file. Only the one that is asked for is imported."""
