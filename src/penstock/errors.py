"""Everything penstock raises on its own account, in one tree.

::

    PenstockError
    ├── PlanError            the pipeline cannot be run as written; nothing has started
    │   └── LengthUnknown    len() of something whose length is not known or not finite
    ├── RaggedBatch          samples that do not fit into one batch, or would lose something in it
    ├── ReadError            a file could not be read, or is not what it was
    ├── DecodeError          bytes that are no image, or a damaged one
    ├── StageTimeout         a call or a batch did not come in time
    ├── WorkerDied           a worker ended without an answer
    ├── TooManyErrors        more samples failed than ``max_errors`` allows
    ├── StateMismatch        a saved state does not fit this pipeline
    ├── CodecError           a sample could not be carried to another process, or not be rebuilt there
    │   ├── NotCarried       a leaf of a type that is not carried
    │   └── BadHeader        what came is damaged, or of another version
    ├── ServiceError         a data server or its client failed
    └── MissingExtra         an optional dependency is not installed

An exception of the user's own function is never wrapped in one of these: it arrives as
itself, with a note that names the op, the sample and the worker.

``Skip`` is not an error: raise it inside a function to leave the sample out.
"""

from __future__ import annotations

from typing import Literal


class PenstockError(Exception):
    """The root: ``except ps.PenstockError`` catches whatever penstock itself raises."""


class PlanError(PenstockError):
    """The pipeline cannot be run as written. The message says what to write instead."""


class LengthUnknown(PlanError, TypeError):
    """The length was asked for and cannot be known before the run, or has no end.

    It is a ``TypeError`` too, so that ``list(pipeline)`` takes it as "no hint".
    """


class RaggedBatch(PenstockError, ValueError):
    """Samples of one batch have different shapes, fields or kinds, or something that a batch would lose."""


class ReadError(PenstockError, OSError):
    """A file is damaged, shorter than it should be, or could not be read in all tries. The message names it."""


class DecodeError(PenstockError, ValueError):
    """Bytes that are no image, a truncated or damaged one, or one with more pixels than ``max_pixels``."""


class StageTimeout(PenstockError, TimeoutError):
    """A call ran past ``map(timeout_s=)``, or a batch past ``loader(timeout_s=)``."""


class WorkerDied(PenstockError):
    """A worker ended without an answer, and could not be replaced."""


class TooManyErrors(PenstockError):
    """More samples failed than ``loader(max_errors=)`` allows."""


class StateMismatch(PenstockError):
    """A saved state belongs to another pipeline; the message names the difference."""


class CodecError(PenstockError):
    """A tree could not be carried, or not be rebuilt."""


class NotCarried(CodecError, TypeError):
    """A leaf of a type that has no place in a header. The message says which leaf, and which type."""


class BadHeader(CodecError, ValueError):
    """A header that is damaged, of another version, or does not fit its memory."""


class ServiceError(PenstockError):
    """A data server or its client failed."""


class MissingExtra(PenstockError, ImportError):
    """An optional dependency is not installed; the message says how to install it."""


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtra:
    """The one wording of "not installed".

    >>> print(missing_extra("pillow", "images", "decoding images"))
    decoding images needs pillow. Install it with: pip install "penstock[images]"
    """
    return MissingExtra(f'{purpose} needs {package}. Install it with: pip install "penstock[{extra}]"')


class Skip(Exception):
    """Raised inside a function to leave its sample out on purpose.

    The sample is counted in ``loader.errors()``, whatever ``on_error`` says.
    """

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


OnError = Literal["raise", "skip"]
