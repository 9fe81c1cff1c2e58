"""A loader that is watched while it runs: a page on this machine, and where ``penstock top`` finds it."""
