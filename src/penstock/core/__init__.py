"""The core of a running loader: which ticket runs next, who runs it, and in what order its samples leave."""
