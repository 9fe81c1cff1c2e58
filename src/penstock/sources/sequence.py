"""from_sequence: anything with a length and ``[]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.sources.chosen import ChosenSource, subset_of
from penstock.sources.source import Indices, length_of, why_long_list
from penstock.trees import read_only

#: their slices are made of the same items, at the speed of C
_SLICED = (list, tuple, range)


#: what a list is mostly made of, and cannot be written to
_IMMUTABLE = {int, float, str, bytes, bool, complex, type(None)}


class SequenceSource(ChosenSource):
    """``dataset[i]`` for every i; several at once by ``dataset.__getitems__`` where there is one."""

    verb = "from_sequence"

    def __init__(self, dataset: Any, indices: Any = None, with_index: bool = False) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise PlanError(
                f"from_sequence needs something with len() and [], got {type(dataset).__name__}; "
                "for what can only be iterated, use from_iterable"
            )
        if isinstance(dataset, (dict, set)):
            raise PlanError(
                f"from_sequence needs samples by number, got a {type(dataset).__name__}; "
                "use from_sequence(list(d.items())), or from_arrays(d) for a dict of columns"
            )
        if isinstance(dataset, np.ma.MaskedArray):
            raise PlanError(
                "from_sequence got a masked array, and a batch would lose the mask; give x.filled(value) and "
                "x.mask as two arrays to from_arrays"
            )
        self.dataset = read_only(dataset) if isinstance(dataset, np.ndarray) else dataset
        self.subset = subset_of(length_of(dataset, self.verb), indices, self.verb)
        self.with_index = with_index

    @property
    def label(self) -> str:
        return f"from_sequence({type(self.dataset).__name__} of {len(self)})"

    @property
    def instant(self) -> bool:
        return isinstance(self.dataset, (*_SLICED, str, bytes))

    @property
    def stays(self) -> str:
        return why_long_list(self.dataset) if type(self.dataset) in (list, tuple) else ""

    @property
    def heap_bytes(self) -> int:
        return self.dataset.nbytes if type(self.dataset) is np.ndarray else 0

    @property
    def whole_length(self) -> int:
        return len(self.dataset)

    def read(self, indices: Indices) -> Sequence[Any]:
        if self.subset is not None:
            indices = self.numbers(indices)
        elif type(self.dataset) is range and type(indices) is range and not self.with_index:
            return self.dataset[indices.start : indices.stop : indices.step]
        samples = self._items(indices)
        if self.with_index:
            return list(zip(indices if isinstance(indices, range) else indices.tolist(), samples, strict=True))
        return samples

    def _items(self, indices: Indices) -> Sequence[Any]:
        dataset = self.dataset
        if isinstance(indices, range):
            if type(dataset) in _SLICED and indices.step == 1:
                part: Sequence[Any] = dataset[indices.start : indices.stop]
                return part if type(part) is range else _safe(part)
            numbers: Any = indices
        else:
            numbers = indices.tolist()
            if type(dataset) is range:
                return numbers if dataset == range(len(dataset)) else [dataset[number] for number in numbers]
        several = getattr(dataset, "__getitems__", None)
        if several is not None:
            samples = list(several(list(numbers)))
            if len(samples) != len(numbers):
                raise IndexError(f"__getitems__ gave {len(samples)} samples for {len(numbers)} indices")
            return samples
        samples = list(map(dataset.__getitem__, numbers))
        return _safe(samples) if type(dataset) in _SLICED else samples


def _safe(samples: Sequence[Any]) -> Sequence[Any]:
    """Items of a list of the user's, which will be read again: safe to hand out."""
    kinds = set(map(type, samples))
    if kinds <= _IMMUTABLE or (kinds == {tuple} and all(_IMMUTABLE.issuperset(map(type, one)) for one in samples)):
        return samples
    return list(map(read_only, samples))
