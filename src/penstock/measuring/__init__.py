"""How fast a pipeline, a training step, or any other loader is."""
