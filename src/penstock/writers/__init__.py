"""Writers: one format per file. `penstock.writers.write` runs a pipeline into one of them."""
