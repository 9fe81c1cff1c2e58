"""Files wherever they are: on disk, in an object store, behind HTTP or any file system of fsspec.

A format asks for `File` objects and never looks at the scheme of a path::

    for path in expanded("s3://bucket/train-{000..099}.tar", "from_tar"):
        header = file(path).read_at(0, 512)

Guarantees:

* A `File` costs nothing until it is used, can be pickled, and may be read by several threads at once. Descriptors
  and clients belong to one process: after a fork the child opens its own.
* `read_at` returns exactly the bytes that were asked for, or raises an error that names the file and the position.
* A remote read is tried again after a failure that may pass, with exponential back-off and jitter, up to a number
  of tries and a deadline (see `retry`). A read never has two requests under way at once.

``options`` is the user's ``storage_options=``: ``tries``, ``attempt_s`` and ``total_s`` are penstock's own; the
rest goes to obstore (``s3 gs az http https``) or to fsspec (any other scheme). Nothing here writes.
"""

from penstock.storage.disk import read_whole
from penstock.storage.expand import ALL, expanded, folders, listed, walked
from penstock.storage.files import File, file, read_all
from penstock.storage.paths import braced, has_magic, joined, local, scheme_of, split_magic, without_query

__all__ = [
    "ALL",
    "File",
    "braced",
    "expanded",
    "file",
    "folders",
    "has_magic",
    "joined",
    "listed",
    "local",
    "read_all",
    "read_whole",
    "scheme_of",
    "split_magic",
    "walked",
    "without_query",
]
