"""ps.show, and what notebooks display: read back by other programs, a PNG decoder and an HTML parser."""

import io
from html.parser import HTMLParser

import numpy as np
import pytest
from tests.cases import for_each

import penstock as ps
from penstock.showing.describe import fields
from penstock.showing.sheet import images_in, png, sheet

VOID = {"br", "img"}


class Parser(HTMLParser):
    """Every tag that is opened must be closed, in turn."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parsed(html):
    parser = Parser()
    parser.feed(html)
    parser.close()
    assert not parser.open
    return parser


# ---------------------------------------------------------------------- describe


@for_each(
    "value, kind, said",
    [
        (np.arange(6, dtype=np.uint8).reshape(2, 3), "uint8 (2, 3)", "0 to 5"),
        (np.array([0.5, 1.5], np.float32), "float32 (2,)", "0.5 to 1.5, mean 1"),
        (np.array([1.0, np.nan, np.inf]), "float64 (3,)", "1, 2 not finite"),
        (np.array([np.nan]), "float64 (1,)", "1 not finite"),
        (np.array([True, False, True]), "bool (3,)", "2 of 3 true"),
        (np.zeros((0, 3)), "float64 (0, 3)", "empty"),
        (np.array(["a", "b"]), "<U1 (2,)", "['a' 'b']"),
        (7, "int", "7"),
        ("x" * 90, "str", "'" + "x" * 38 + "…"),
        (b"abc", "bytes of 3", "b'abc'"),
        ([1, 2, 3], "list of 3", "[1, 2, 3]"),
        (None, "NoneType", "None"),
    ],
)
def test_what_a_leaf_is(value, kind, said):
    ((_, found_kind, found),) = fields(value)
    assert (found_kind, found) == (kind, said)


class Mute:
    def __repr__(self):
        raise RuntimeError("not now")


@for_each("value, kind", [(Mute(), "Mute"), ([Mute()], "list of 1"), (np.array([Mute()]), "object (1,)")])
def test_a_value_that_cannot_be_printed_is_shown_by_its_type(value, kind):
    (field,) = fields(value)
    assert field.kind == kind
    assert field.value == "(cannot be printed: RuntimeError)"


def test_fields_have_the_names_of_their_path():
    assert [one.name for one in fields({"a": (1, {"b": 2}), "c": 3})] == ["a.0", "a.1.b", "c"]


def test_a_tensor_is_described_as_an_array_is():
    torch = pytest.importorskip("torch")
    ((_, kind, said),) = fields(torch.arange(4, dtype=torch.bfloat16))
    assert kind == "torch.bfloat16 (4,)"
    assert said == "0 to 3, mean 1.5"


def test_a_list_is_shown_sample_by_sample():
    text = str(ps.show([{"n": number} for number in range(20)]))
    assert "[7]\nn  int  7" in text
    assert "… and 12 more" in text
    assert str(ps.show([])) == "no samples"


# ---------------------------------------------------------------------- images


def decoded(data):
    image = pytest.importorskip("PIL.Image")
    return np.asarray(image.open(io.BytesIO(data)))


def test_a_png_is_read_back_by_another_program():
    image = np.random.default_rng(0).integers(0, 256, (13, 7, 3), np.uint8)
    assert (decoded(png(image)) == image).all()


@for_each(
    "array, count",
    [
        (np.zeros((16, 16, 3), np.uint8), 1),
        (np.zeros((16, 16), np.uint8), 1),
        (np.zeros((16, 16, 1), np.uint8), 1),
        (np.zeros((16, 16, 4), np.uint8), 1),
        (np.zeros((3, 16, 16), np.float32), 1),
        (np.zeros((5, 16, 16, 3), np.uint8), 5),
        (np.zeros((5, 3, 16, 16), np.float32), 5),
        (np.zeros((5, 16, 16), np.uint8), 5),
        (np.zeros((4, 4, 3), np.uint8), 0),
        (np.zeros(100), 0),
        (np.zeros((16, 16), np.int64), 0),
        (np.zeros((16, 16, 7)), 0),
    ],
)
def test_what_an_image_is(array, count):
    found = list(images_in({"x": [array], "label": 3}))
    assert len(found) == count
    assert all(image.dtype == np.uint8 and image.shape == (16, 16, 3) for image in found)


def test_floats_are_scaled_to_what_can_be_seen():
    (unit,) = images_in(np.full((8, 8, 3), 0.5, np.float32))
    assert (unit == 127).all()
    normalised = np.linspace(-2, 2, 192, dtype=np.float32).reshape(8, 8, 3)
    (found,) = images_in(normalised)
    assert (found.min(), found.max()) == (0, 255)


@for_each("odd, shown", [(np.inf, 255), (-np.inf, 0), (np.nan, 0)])
def test_a_pixel_that_is_no_number_leaves_the_others_visible(odd, shown):
    image = np.linspace(-2, 2, 192, dtype=np.float32).reshape(8, 8, 3)
    (plain,) = images_in(image)
    image[4, 4, 0] = odd
    (found,) = images_in(image)
    assert found[4, 4, 0] == shown
    found[4, 4, 0] = plain[4, 4, 0]
    assert (found == plain).all()


@for_each("value", [np.nan, np.inf, 3e38])
def test_an_image_without_contrast_can_be_shown(value):
    (found,) = images_in(np.full((8, 8, 3), value, np.float32))
    assert found.shape == (8, 8, 3)


def test_images_are_side_by_side_and_large_ones_small():
    images = [np.full((8, 8, 3), number, np.uint8) for number in range(9)]
    found = sheet(images)
    assert found.shape == (20, 92, 3)
    assert found[0, 0, 0] == 0
    assert found[0, 84, 0] == 7
    assert found[12, 0, 0] == 8
    (small,) = images_in(np.zeros((640, 320, 3), np.uint8))
    assert small.shape == (160, 80, 3)
    assert sheet([]) is None


def test_a_contact_sheet_is_saved(tmp_path):
    data = ps.fake({"image": ((16, 16, 3), "uint8"), "label": ((), "int64")}, 20).batch(6)
    ps.show(data.peek(1)[0]).save(tmp_path / "sheet.png")
    assert decoded((tmp_path / "sheet.png").read_bytes()).shape == (16, 6 * 20 - 4, 3)


def test_samples_without_an_image_cannot_be_saved_as_one(tmp_path):
    with pytest.raises(ps.PlanError, match="no image in these samples"):
        ps.show([1, 2]).save(tmp_path / "sheet.png")


# ---------------------------------------------------------------------- notebooks


def test_what_peek_gives_is_a_list_and_shows_itself():
    found = ps.fake({"image": ((16, 16, 3), "uint8")}, 4).peek(2)
    assert isinstance(found, list)
    html = parsed(found._repr_html_())
    assert "img" in html.seen
    assert "uint8 (16, 16, 3)" in html.text
    assert repr(ps.from_sequence([1, 2]).peek(2)) == "[1, 2]"


def test_text_of_the_user_is_not_read_as_html():
    html = parsed(ps.show({"<b>": "<script>alert(1)</script>"})._repr_html_())
    assert "script" not in html.seen
    assert "<script>" in html.text


def test_whole_numbers_keep_all_of_their_digits():
    text = str(ps.show({"label": np.int64(123456789), "tokens": np.array([3, 50256]), "loss": np.array(0.123456)}))
    assert "123456789" in text
    assert "3 to 50256" in text
    assert "0.1235" in text


def test_a_pipeline_shows_its_stages():
    data = ps.from_sequence(range(10)).map(str, workers=2, name="<text>").batch(2)
    html = parsed(data._repr_html_())
    assert "<text>+batch" in html.text
    assert "2 threads" in html.text
    assert "map" in html.text


def test_workers_that_are_found_in_the_run_are_not_shown_as_so_many():
    html = parsed(ps.from_sequence(range(10)).map(str, workers="auto")._repr_html_())
    assert "1 to 256 threads, found while it runs" in html.text


def test_a_pipeline_that_cannot_be_planned_says_why():
    html = parsed(ps.from_iterable(lambda: [1]).shuffle()._repr_html_())
    assert "shuffle" in html.text
    assert "window" in html.text


def test_a_loader_and_its_diagnosis_show_where_the_time_goes():
    with ps.from_sequence(range(40)).map(str, workers=2).batch(4).loader() as loader:
        before = parsed(loader._repr_html_())
        assert "could do" not in before.text
        list(loader)
        after = parsed(loader._repr_html_())
    found = loader.diagnose()
    assert "could do" in after.text
    html = parsed(found._repr_html_())
    assert "training loop" in html.text
    assert found.advice in html.text
    assert found._repr_html_().count("display:inline-flex;width:160px") == 2
    assert "rank 1" not in html.text
    assert "rank 1" in parsed(ps.Diagnosis.merge([found, found])._repr_html_()).text
