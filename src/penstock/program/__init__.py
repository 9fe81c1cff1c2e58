"""Programs: from a ticket to a chunk. They read, call, retry and batch; they know nothing of workers."""
