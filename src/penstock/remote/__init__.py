"""Other processes: workers that run tickets, and a whole loader that runs in isolation."""
