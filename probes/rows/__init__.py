"""Hidden states on disk: save them, read them, run probes on them, and read other engines' hidden states."""
