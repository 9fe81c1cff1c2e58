"""Sources: one format per file. The contract is in `penstock.sources.source`."""
