"""Files with checksums, locks on folders, digests, versions, and sets of example indices."""
