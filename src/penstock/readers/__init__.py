"""The functions that make a pipeline of data files, by the kind of their formats."""
