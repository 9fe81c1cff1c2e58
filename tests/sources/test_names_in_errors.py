"""What a source calls a sample is in the note on its exception, and in `loader.errors()`."""

import pytest
from tests.cases import for_each

import penstock as ps

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture
def folder(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(4):
            (tmp_path / label / f"{number}.jpg").write_bytes(b"%d" % number)
    return tmp_path


def fail_at_three(data):
    if data == b"3":
        raise ValueError("no image")
    return data


@for_each("where", [{}, {"workers": 2}, {"on": "process", "workers": 1}])
def test_a_skipped_sample_is_recorded_with_its_path(folder, where):
    data = ps.from_folder(folder).shuffle().map(fail_at_three, key="image", on_error="skip", **where)
    with data.loader() as loader:
        assert len(list(loader)) == 6
        assert sorted(record.name for record in loader.errors()) == [
            str(folder / "cat" / "3.jpg"),
            str(folder / "dog" / "3.jpg"),
        ]
        assert all(record.name in str(record) for record in loader.errors())


@for_each("where", [{}, {"workers": 2}, {"on": "process", "workers": 1}])
def test_an_exception_is_noted_with_the_path_of_its_sample(folder, where):
    with pytest.raises(ValueError, match="no image") as caught:
        list(ps.from_folder(folder).map(fail_at_three, key="image", **where).batch(2))
    assert any(str(folder / "cat" / "3.jpg") in note for note in caught.value.__notes__)


def test_a_file_that_cannot_be_read_is_named(folder):
    (folder / "dog" / "1.jpg").unlink()
    (folder / "dog" / "1.jpg").symlink_to(folder / "nowhere")
    with pytest.raises(OSError, match=r"dog/1\.jpg") as caught:
        list(ps.from_files([str(folder / "dog" / f"{number}.jpg") for number in range(4)]))
    assert any("1.jpg" in note for note in caught.value.__notes__)
