"""The runtime: tickets, programs, workers, the loader. A sample's way through it is in `docs/runtime.md`."""
