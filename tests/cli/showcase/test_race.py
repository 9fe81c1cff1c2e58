"""The two runs: the same work, counted in the same way."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from penstock.cli.showcase import photos, race
from penstock.cli.showcase.results import busy_cells


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return photos.make_photos(tmp_path, 5)


def no_progress(steps: int, elapsed_s: float) -> None:
    pass


def test_photos_are_the_same_every_time(tmp_path: Path):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    first, second = (photos.make_photos(folder, 2) for folder in folders)
    assert [Path(path).read_bytes() for path in first] == [Path(path).read_bytes() for path in second]
    assert Path(first[0]).read_bytes() != Path(first[1]).read_bytes()


def test_a_photo_is_decoded_and_cut_to_the_size_of_the_others(paths):
    photo = photos.load(paths[0])
    assert (photo.shape, photo.dtype) == ((photos.HEIGHT, photos.WIDTH, 3), np.uint8)
    crop = photos.augment(photo, np.random.default_rng(0))
    assert (crop.shape, crop.dtype) == ((photos.CROP, photos.CROP, 3), np.uint8)


def test_both_runs_cut_an_epoch_into_the_same_batches(paths):
    plain = race.plain_batches(paths, 2)
    expected = [next(plain).shape for _ in range(3)]
    assert [batch.shape for batch in race.pipeline(paths, 2, workers=2)] == expected
    assert [shape[0] for shape in expected] == [2, 2, 1]


def test_a_run_ends_after_its_steps():
    told: list[int] = []
    run = race.feed(iter(range(100)), 0.0, lambda steps, _: told.append(steps), steps=3)
    assert told == [1, 2, 3]
    assert len(run.begun) == 3


def test_a_run_ends_after_its_time():
    run = race.feed(iter(range(10**9)), 0.001, no_progress, seconds=0.01)
    assert run.elapsed_s >= 0.01
    assert 1 <= len(run.begun) <= 11


def test_the_busy_share_is_the_time_of_the_steps_in_that_of_the_run():
    run = race.Run(begun=(0.0, 1.0, 2.0), step_s=0.5, elapsed_s=3.0)
    assert (run.busy_share, run.steps_per_s) == (0.5, 1.0)


def test_a_strip_is_busy_where_a_step_runs():
    assert busy_cells([0.0, 1.0, 2.0, 3.0], 0.5, 2.0, 8) == [True, True, False, False] * 2
