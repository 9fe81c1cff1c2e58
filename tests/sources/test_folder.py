"""from_folder: a folder of images with a folder for each class."""

import io
import json
import os

import pytest
from tests.cases import for_each

import penstock as ps
from penstock.sources import listing
from penstock.testing import check_source

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture
def folder(tmp_path):
    """Real images, by Pillow: three classes with files and one without."""
    for name, count in {"dog": 3, "cat": 4, "cat-big": 2, "none": 0}.items():
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (4, 3), (number, count, 0)).save(tmp_path / "train" / name / f"{number}.png")
    return tmp_path / "train"


def test_the_label_is_the_number_of_the_folder_among_the_sorted_names(folder):
    data = ps.from_folder(folder)
    assert data.source.classes == ["cat", "cat-big", "dog", "none"]
    samples = list(data)
    for sample in samples:
        first = os.path.relpath(sample["path"], folder).split(os.sep)[0]
        assert data.source.classes[sample["label"]] == first
        assert Image.open(io.BytesIO(sample["image"])).size == (4, 3)
    assert data.source.labels.tolist() == [sample["label"] for sample in samples]
    assert sorted(data.source.labels.tolist()) == [0, 0, 0, 0, 1, 1, 2, 2, 2]


def test_labels_do_not_depend_on_the_pattern(folder):
    data = ps.from_folder(folder, pattern="dog/*")
    assert [sample["label"] for sample in data] == [2, 2, 2]


def test_a_pattern_with_braces_is_one_sorted_listing_with_each_file_once(folder):
    for name in ("dog/1.jpg", "cat/9.jpeg", "cat/notes.txt"):
        (folder / name).write_bytes(b"x")
    pattern = "**/*.{png,jpg,jpeg,jp*}"
    paths = [sample["path"] for sample in ps.from_folder(folder, pattern=pattern, read=False)]
    assert paths == sorted(paths)
    assert [os.path.splitext(path)[1] for path in paths].count(".png") == len(paths) - 2 == 9


def test_fields_that_are_not_wanted_are_left_out(folder):
    assert set(ps.from_folder(folder).peek()[0]) == {"image", "label", "path"}
    assert set(ps.from_folder(folder, read=False).peek()[0]) == {"label", "path"}
    assert set(ps.from_folder(folder, labels=None).peek()[0]) == {"image", "path"}
    assert set(ps.from_folder(folder, labels=None, read=False).peek()[0]) == {"path"}


def test_the_source_keeps_the_contract(folder):
    check_source(ps.from_folder(folder))
    check_source(ps.from_folder(folder, indices=[8, 0, 8], labels=None))


def test_labels_serve_a_stratified_split_and_a_balanced_draw(folder):
    data = ps.from_folder(folder)
    part, _ = data.split([0.5, 0.5], labels=data.source.labels)
    assert {sample["label"] for sample in part} == {0, 1, 2}
    drawn = [sample["label"] for sample in data.resample(balance=data.source.labels, n=300)]
    assert min(drawn.count(label) for label in (0, 1, 2)) > 60
    chosen = ps.from_folder(folder, indices=[8, 0]).source
    assert (chosen.labels.tolist(), chosen.name(0)) == ([2, 1], f"{folder}/dog/2.png")


def test_many_files_of_many_classes_have_the_labels_of_their_folders(tmp_path):
    expected = []
    for number in range(40):
        name = f"class{number:02}"
        (tmp_path / name).mkdir()
        for file in range(number % 5 * 7):
            (tmp_path / name / f"{file:03}").write_bytes(b"x")
            expected.append(number)
    assert ps.from_folder(tmp_path).source.labels.tolist() == expected
    assert [sample["label"] for sample in ps.from_folder(tmp_path, read=False)] == expected


@for_each(
    "options, said",
    [
        ({}, "stray.txt' is in no class folder; leave it out by pattern='\\*/\\*\\*', or use labels=None"),
        ({"pattern": "*.jpg"}, "no file in .* matches '\\*.jpg'"),
        ({"labels": "file"}, "labels= is 'folder' or None"),
        ({"on_error": 1}, "on_error= is"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(tmp_path, options, said):
    (tmp_path / "stray.txt").write_bytes(b"x")
    with pytest.raises(ps.PlanError, match=said):
        ps.from_folder(tmp_path, **options)
    assert len(ps.from_folder(tmp_path, labels=None)) == 1


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ps.PlanError, match="nowhere': no such folder"):
        ps.from_folder(tmp_path / "nowhere")


# ---------------------------------------------------------------------- manifests


def test_a_manifest_is_written_once_and_then_read_in_place_of_a_listing(folder, tmp_path, monkeypatch):
    manifest = tmp_path / "names.json"
    first = ps.from_folder(folder, manifest=manifest)
    monkeypatch.setattr(listing, "walked", None)  # nothing is listed any more
    monkeypatch.setattr("penstock.sources.folder.folders", None)
    second = ps.from_folder(folder, manifest=manifest)
    assert list(first) == list(second)
    assert first.source.content == second.source.content
    assert first.source.classes == second.source.classes
    assert [path.name for path in tmp_path.iterdir() if "names" in path.name] == ["names.json"]


def test_a_manifest_keeps_names_of_any_letters(tmp_path):
    (tmp_path / "data").mkdir()
    odd = sorted([b"line\nbreak", b"\xff\xfe", "ü".encode(), b'"'])
    for name in odd:
        with open(os.path.join(os.fsencode(tmp_path), b"data", name), "wb") as file:
            file.write(name)
    for _ in range(2):
        data = ps.from_files(tmp_path / "data", manifest=tmp_path / "m.json")
        assert [sample["data"] for sample in data] == odd


DAMAGED = {
    "no json": lambda text: b"\x00" + text,
    "cut": lambda text: text[:-20],
    "a name less": lambda text: b"\n".join(text.splitlines()[:-1]) + b"\n",
    "another name": lambda text: text.replace(b"dog/0.png", b"dog/9.png"),
    "empty": lambda text: b"",
    "of another kind": lambda text: b"[1]\n",
    "a field missing": lambda text: text.replace(b'"digest"', b'"gist"'),
    "not ascii": lambda text: text.replace(b"dog", b"d\xff\xff"),
}


@for_each("what", DAMAGED)
def test_a_damaged_manifest_is_refused_by_name(folder, tmp_path, what):
    manifest = tmp_path / f"{what}.json"
    ps.from_folder(folder, manifest=manifest)
    manifest.write_bytes(DAMAGED[what](manifest.read_bytes()))
    with pytest.raises(ps.PlanError, match=rf"{what}\.json' is damaged: .*; delete it to list again"):
        ps.from_folder(folder, manifest=manifest)


def test_a_manifest_of_another_folder_or_pattern_is_refused_by_name(folder, tmp_path):
    manifest = tmp_path / "m.json"
    ps.from_folder(folder, manifest=manifest)
    with pytest.raises(
        ps.PlanError, match=rf"is of '{folder}' with the pattern '\*\*/\*', and not of '{folder}/dog'"
    ):
        ps.from_files(folder / "dog", manifest=manifest)
    with pytest.raises(ps.PlanError, match=r"and not of .* with '\*/0\.png'"):
        ps.from_folder(folder, pattern="*/0.png", manifest=manifest)


def test_a_manifest_that_cannot_be_finished_leaves_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(listing.os, "replace", lambda *args: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        ps.from_folder(folder, manifest=tmp_path / "m.json")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("m.json")]


def test_a_manifest_says_what_it_is_of(folder, tmp_path):
    ps.from_folder(folder, manifest=tmp_path / "m.json")
    head = json.loads((tmp_path / "m.json").read_text().splitlines()[0])
    assert (head["folder"], head["pattern"], head["count"]) == (str(folder), "**/*", 9)
