"""Where `to()` puts batches: `device.py` is the contract, and each library has a file."""
