"""penstock: the input pipeline that keeps an accelerator fed.

>>> import penstock as ps
>>> data = ps.from_sequence(range(6)).map(lambda x: x * x, workers=2).batch(4)
>>> for batch in data:
...     print(batch)
[0 1 4 9]
[16 25]
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from penstock.lazy import lazy as _lazy

# What a user does not use is not imported: a test keeps the two lists alike.
if _TYPE_CHECKING:
    from penstock import image, indices, ops
    from penstock.construct import (
        concat,
        fake,
        from_arrays,
        from_files,
        from_folder,
        from_iterable,
        from_sequence,
        mix,
        zip,
    )
    from penstock.core.loader import Loader
    from penstock.errors import (
        DecodeError,
        LengthUnknown,
        MissingExtra,
        PenstockError,
        PlanError,
        RaggedBatch,
        ReadError,
        ServiceError,
        Skip,
        StageTimeout,
        StateMismatch,
        TooManyErrors,
        WorkerDied,
    )
    from penstock.evaluation import evaluate
    from penstock.executors.processes import Processes
    from penstock.executors.threads import Threads
    from penstock.frameworks.torch_data import from_torch
    from penstock.image.decode import decode_image
    from penstock.measuring.compare import Comparison, compare
    from penstock.measuring.measure import Measurement, measure
    from penstock.measuring.watch import watch
    from penstock.ops.call import Retry
    from penstock.ops.functions import per_worker
    from penstock.pipeline import Pipeline
    from penstock.program.calls import SampleInfo
    from penstock.program.chunk import ErrorRecord
    from penstock.readers.records import from_jsonl, from_lmdb, from_tar, from_text, from_tfrecord
    from penstock.readers.tables import from_arrow, from_csv, from_hdf5, from_npy, from_parquet
    from penstock.resume.ranks import merge_states
    from penstock.resume.schema import edit_state
    from penstock.service.client import connect
    from penstock.service.server import Server, serve
    from penstock.showing.show import show
    from penstock.stats.report import Diagnosis
else:
    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "penstock.image": [],
            "penstock.indices": [],
            "penstock.ops": [],
            "penstock.construct": [
                "concat",
                "fake",
                "from_arrays",
                "from_files",
                "from_folder",
                "from_iterable",
                "from_sequence",
                "mix",
                "zip",
            ],
            "penstock.errors": [
                "DecodeError",
                "LengthUnknown",
                "MissingExtra",
                "PenstockError",
                "PlanError",
                "RaggedBatch",
                "ReadError",
                "ServiceError",
                "Skip",
                "StageTimeout",
                "StateMismatch",
                "TooManyErrors",
                "WorkerDied",
            ],
            "penstock.evaluation": ["evaluate"],
            "penstock.executors.processes": ["Processes"],
            "penstock.executors.threads": ["Threads"],
            "penstock.frameworks.torch_data": ["from_torch"],
            "penstock.image.decode": ["decode_image"],
            "penstock.measuring.compare": ["Comparison", "compare"],
            "penstock.measuring.measure": ["Measurement", "measure"],
            "penstock.measuring.watch": ["watch"],
            "penstock.ops.call": ["Retry"],
            "penstock.ops.functions": ["per_worker"],
            "penstock.pipeline": ["Pipeline"],
            "penstock.program.calls": ["SampleInfo"],
            "penstock.program.chunk": ["ErrorRecord"],
            "penstock.readers.records": ["from_jsonl", "from_lmdb", "from_tar", "from_text", "from_tfrecord"],
            "penstock.readers.tables": ["from_arrow", "from_csv", "from_hdf5", "from_npy", "from_parquet"],
            "penstock.core.loader": ["Loader"],
            "penstock.resume.schema": ["edit_state"],
            "penstock.resume.ranks": ["merge_states"],
            "penstock.service.client": ["connect"],
            "penstock.service.server": ["Server", "serve"],
            "penstock.showing.show": ["show"],
            "penstock.stats.report": ["Diagnosis"],
        },
    )

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "DecodeError",
    "Diagnosis",
    "ErrorRecord",
    "LengthUnknown",
    "Loader",
    "Measurement",
    "MissingExtra",
    "PenstockError",
    "Pipeline",
    "PlanError",
    "Processes",
    "RaggedBatch",
    "ReadError",
    "Retry",
    "SampleInfo",
    "Server",
    "ServiceError",
    "Skip",
    "StageTimeout",
    "StateMismatch",
    "Threads",
    "TooManyErrors",
    "WorkerDied",
    "compare",
    "concat",
    "connect",
    "decode_image",
    "edit_state",
    "evaluate",
    "fake",
    "from_arrays",
    "from_arrow",
    "from_csv",
    "from_files",
    "from_folder",
    "from_hdf5",
    "from_iterable",
    "from_jsonl",
    "from_lmdb",
    "from_npy",
    "from_parquet",
    "from_sequence",
    "from_tar",
    "from_text",
    "from_tfrecord",
    "from_torch",
    "image",
    "indices",
    "measure",
    "merge_states",
    "mix",
    "ops",
    "per_worker",
    "serve",
    "show",
    "watch",
    "zip",
]
