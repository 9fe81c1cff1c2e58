"""A stream that knows whether its next record is here is read as far as that, in one turn."""

import time
from collections.abc import Iterator
from typing import Any

from tests.cases import for_each

import penstock as ps
from penstock.core.stream import StreamInlet
from penstock.sources.source import Opening, StreamSource


class Arriving(StreamSource):
    """So many records are here; for each further one it would wait."""

    verb = "arriving"

    def __init__(self, here: int, n: int = 20) -> None:
        self.here, self.n = here, n

    def shards(self) -> Any:
        return (None,)

    def open(self, shard: Any, skip: int) -> Iterator[int]:
        return iter(range(skip, self.n))

    def opened(self, shard: Any, skip: int, opening: Opening) -> Iterator[int]:
        given = 0

        def ready() -> bool:
            return given < self.here

        opening.ready = ready
        for number in self.open(shard, skip):
            given += 1
            time.sleep(50e-6)  # longer than a record that was at hand takes
            yield number


@for_each("here", [2, 3, 7])
def test_records_that_are_here_are_read_in_one_turn_and_none_is_waited_for(here, monkeypatch):
    monkeypatch.setattr("penstock.core.stream.TARGET_S", 60.0)
    inlet = StreamInlet(Arriving(here), 0)
    assert inlet.pull(100, "w").records == [0]  # the first batch comes early
    assert inlet.pull(100, "w").records == list(range(1, here))


def test_no_turn_takes_more_records_than_it_may():
    inlet = StreamInlet(Arriving(20), 0)
    inlet.pull(100, "w")
    assert len(inlet.pull(2, "w").records) <= 2


def test_all_records_come_in_order():
    assert list(ps.Pipeline(Arriving(3))) == list(range(20))
