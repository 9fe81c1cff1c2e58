"""A loader as a data set for Keras 3: `loader.keras()`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from penstock.errors import missing_extra


def keras_dataset(loader: Any) -> Any:
    """A ``keras.utils.PyDataset`` of the loader's batches: each epoch of Keras is the next one of the loader."""
    try:
        utils = importlib.import_module("keras.utils")
    except ImportError:
        raise missing_extra("keras", "keras", "loader.keras()") from None

    class LoaderDataset(utils.PyDataset):  # type: ignore[misc, name-defined]
        """Gives the loader's batches in their order, whichever number Keras asks for."""

        def __init__(self) -> None:
            super().__init__(workers=1, use_multiprocessing=False)
            self._batches: Iterator[Any] | None = None
            #: how many batches of this epoch Keras has got, and the first one, until it is certain that it was used
            self._given = 0
            self._first: Any = None
            self._looked = False

        @property
        def num_batches(self) -> int:
            return len(loader)

        def __getitem__(self, number: int) -> Any:
            self._given += 1
            if self._given == 1 and self._first is not None:
                first, self._first = self._first, None
                return first
            if self._batches is None:
                self._batches = iter(loader)
            batch = next(self._batches)
            # Keras takes one batch to build the model, ends that epoch, and begins the first one.
            self._first = batch if self._given == 1 and not self._looked else None
            return batch

        def on_epoch_end(self) -> None:
            if self._first is None or self._given > 1 or self.num_batches == 1:
                self._batches = self._first = None
            self._given, self._looked = 0, True

    return LoaderDataset()
