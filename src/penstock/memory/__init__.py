"""Memory for batches."""
