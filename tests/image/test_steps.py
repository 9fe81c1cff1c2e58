"""The steps between decoding and a batch."""

import math
import pickle
import sys

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import few_layouts

import penstock as ps
from penstock.image.steps import IMAGENET_MEAN, IMAGENET_STD

pytest.importorskip("cv2")
PILImage = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.usefixtures("warm_processes")


def noise(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def without(*modules):
    patch = pytest.MonkeyPatch()
    for name in modules:
        patch.setitem(sys.modules, name, None)
    return patch


@pytest.fixture(params=["cv2", "pillow"])
def backend(request):
    patch = without() if request.param == "cv2" else without("cv2")
    yield request.param
    patch.undo()


# ---------------------------------------------------------------------- resize


@for_each(
    "size, shape, result",
    [
        (50, (100, 200), (50, 100)),
        (50, (200, 100), (100, 50)),
        (50, (50, 50), (50, 50)),
        (300, (100, 200), (300, 600)),
        ((30, 40), (100, 200), (30, 40)),
        ((300, 40), (100, 200), (300, 40)),
        (1, (100, 3), (33, 1)),
    ],
)
def test_a_number_is_the_shorter_side_and_a_pair_both(size, shape, result):
    for channels in (1, 3, 4, 5):
        assert ps.image.resize(size)(noise(*shape, channels)).shape == (*result, channels)
    assert ps.image.resize(size)(noise(*shape)[..., 0]).shape == result


def test_nothing_is_skipped_when_an_image_is_made_smaller(backend):
    """Stripes one pixel wide become gray. Without antialiasing they would stay black or white."""
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::2] = 255
    for size in (128, 100, 64, 37, 10):
        small = ps.image.resize((size, size))(stripes)
        assert small.min() > 90, size
        assert small.max() < 166, size


def test_a_side_is_averaged_though_the_other_grows(backend):
    stripes = np.zeros((64, 256, 3), np.uint8)
    stripes[:, ::2] = 255
    small = ps.image.resize((128, 64))(stripes)
    assert (small.min() > 100, small.max() < 156) == (True, True)


def test_the_mean_of_an_image_stays(backend):
    image = noise(200, 300)
    for size in ((100, 100), (17, 93), (400, 500)):
        assert abs(ps.image.resize(size)(image).mean() - image.mean()) < 1.5


def test_alpha_does_not_darken_the_colours(backend):
    image = np.full((40, 40, 4), 200, np.uint8)
    image[..., 3] = 0
    assert ps.image.resize(10)(image)[..., :3].min() == 200


# ---------------------------------------------------------------------- crops


def test_the_middle_is_taken_and_a_small_image_is_first_made_larger():
    image = noise(101, 200)
    assert np.array_equal(ps.image.center_crop((51, 100))(image), image[25:76, 50:150])
    assert ps.image.center_crop(224)(noise(100, 300)).shape == (224, 224, 3)
    assert ps.image.center_crop(224)(noise(300, 100)).shape == (224, 224, 3)


def test_a_random_crop_keeps_to_its_bounds_and_varies():
    crop = ps.image.random_resized_crop(32, scale=(0.1, 0.5), ratio=(0.5, 2.0))
    rng = np.random.default_rng(0)
    boxes = [crop.box(300, 400, rng) for _ in range(2000)]
    for top, left, height, width in boxes:
        assert 0 <= top <= 300 - height
        assert 0 <= left <= 400 - width
        assert 0.095 < height * width / 120_000 < 0.505
        assert 0.48 < width / height < 2.08
    # Corners and middle are all reached, and wide crops are as frequent as narrow ones.
    assert {(top < 100, left < 130) for top, left, *_ in boxes} == {
        (True, True),
        (True, False),
        (False, True),
        (False, False),
    }
    assert abs(np.mean([math.log(width / height) for *_, height, width in boxes])) < 0.05


def test_a_crop_of_the_whole_image_is_the_resized_image():
    image = noise(64, 64)
    crop = ps.image.random_resized_crop(32, scale=(1, 1), ratio=(1, 1))
    assert np.array_equal(crop(image, np.random.default_rng(0)), ps.image.resize(32)(image))


@for_each("shape", [(1, 1), (1, 500), (500, 1), (3, 1000), (1000, 3)])
def test_an_image_of_any_shape_is_cropped(shape):
    for seed in range(20):
        assert ps.image.random_resized_crop(8)(noise(*shape), np.random.default_rng(seed)).shape == (8, 8, 3)


# ---------------------------------------------------------------------- values


def test_flipping_mirrors_about_p_of_the_images(backend):
    image, rng = noise(5, 7), np.random.default_rng(0)
    flipped = [not np.array_equal(ps.image.flip(0.25)(image, rng), image) for _ in range(2000)]
    assert 420 < sum(flipped) < 580
    for channels in (1, 3, 4):
        one = noise(5, 7, channels)
        assert np.array_equal(ps.image.flip(1)(one, rng), one[:, ::-1])
    assert np.array_equal(ps.image.flip(1)(image[..., 0], rng), image[:, ::-1, 0])


def test_normalizing_gives_float32_by_channel():
    image = noise(4, 5)
    expected = (image / 255 - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
    found = ps.image.normalize()(image)
    assert found.dtype == np.float32
    assert np.allclose(found, expected, atol=1e-5)
    turned = ps.image.normalize(layout="CHW")(image)
    assert turned.flags.c_contiguous
    assert np.allclose(turned, expected.transpose(2, 0, 1), atol=1e-5)
    assert np.allclose(
        ps.image.normalize([0.5], [0.25])(image[..., 0]), (image[..., 0] / 255 - 0.5) / 0.25, atol=1e-5
    )
    ready = (image / 255).astype(np.float32)
    assert np.allclose(ps.image.normalize()(ready), expected, atol=1e-5)
    with pytest.raises(ValueError, match="3 means, and the image 4 channels"):
        ps.image.normalize()(noise(2, 2, 4))


# ---------------------------------------------------------------------- all of them

STEPS = [
    (ps.image.resize(20), False),
    (ps.image.center_crop(20), False),
    (ps.image.random_resized_crop(20), True),
    (ps.image.flip(), True),
    (ps.image.normalize(), False),
]


@for_each("step, random", STEPS)
def test_a_step_is_a_value_and_leaves_the_image_as_it_was(step, random):
    image = noise(30, 40)
    image.flags.writeable = False
    before = image.copy()
    rng = [np.random.default_rng(1)] if random else []
    found = step(image, *rng)
    assert np.array_equal(image, before)
    copy = pickle.loads(pickle.dumps(step))
    assert copy == step
    rng = [np.random.default_rng(1)] if random else []
    assert np.array_equal(copy(image, *rng), found)


@for_each("step, random", STEPS)
def test_what_is_no_image_is_refused_by_the_name_of_the_step(step, random):
    rng = [np.random.default_rng(0)] if random else []
    for bad in (b"bytes", np.zeros(3), np.zeros((0, 3, 3)), None):
        with pytest.raises(TypeError, match=f"{step.__name__} takes an image as an array"):
            step(bad, *rng)


@for_each(
    "make, said",
    [
        (lambda: ps.image.resize(0), "resize: size"),
        (lambda: ps.image.resize((1, 2, 3)), "resize: size is a number or"),
        (lambda: ps.image.center_crop(1.5), "center_crop: size"),
        (lambda: ps.image.random_resized_crop(3, scale=(0, 1)), "scale is"),
        (lambda: ps.image.random_resized_crop(3, scale=(0.5, 2)), "at most 1"),
        (lambda: ps.image.random_resized_crop(3, ratio=(2, 1)), "ratio is"),
        (lambda: ps.image.flip(2), "p is a probability"),
        (lambda: ps.image.normalize([1], [1, 2]), "one value for each channel"),
        (lambda: ps.image.normalize(0.5, 0.5), r"lists, got 0.5 and 0.5; for one channel: \[0.5\]"),
        (lambda: ps.image.normalize([1], [0]), "std is above 0"),
        (lambda: ps.image.normalize(layout="WHC"), "layout is"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(make, said):
    with pytest.raises(ps.PlanError, match=said):
        make()


def test_resizing_without_a_library_says_what_to_install():
    patch = without("cv2", "PIL")
    patch.delitem(sys.modules, "PIL.Image", raising=False)
    try:
        with pytest.raises(ps.MissingExtra, match=r"penstock\[images\]"):
            ps.image.resize(3)(noise(8, 8))
    finally:
        patch.undo()


IMAGES = [noise(40, 50, seed=number) for number in range(6)]


@few_layouts
def test_random_steps_draw_the_same_on_every_layout(layout):
    data = ps.from_sequence(IMAGES).map(ps.image.random_resized_crop(8), rng=True, **layout.place)
    data = data.map(ps.image.flip(), rng=True).batch(3)
    found = np.concatenate(layout.run(data, seed=3))
    expected = np.concatenate(list(data.loader(seed=3, inline=True)))
    assert np.array_equal(found, expected)
    assert len({image.tobytes() for image in found}) == 6
