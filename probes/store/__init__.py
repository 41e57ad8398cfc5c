"""Files with checksums, locks on folders, digests, and sets of example indices."""
