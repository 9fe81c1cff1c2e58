"""Samples kept in a folder: what `cache(path=)` writes, and what its key is made of.

* `record`: one sample of the source as bytes, with a checksum.
* `segment`: files that records are appended to, each by one writer.
* `folder`: what is in a folder altogether, who uses it, and what goes when it is full.
* `store`: all of that behind `get` and `put`.
* `digest`: values and functions as a hash that is the same in every process.
"""
