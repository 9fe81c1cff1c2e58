"""Memory for batches, and what else is shared between processes."""

__all__ = ["SHARED_BYTES"]

#: data of at least this many bytes is shared between processes; smaller data is copied into each of them
SHARED_BYTES = 1_000_000
