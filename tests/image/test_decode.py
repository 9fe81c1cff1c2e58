"""decode_image: real files that Pillow wrote, through every decoder."""

import io
import pickle
import struct
import sys
import zlib
from contextlib import suppress

import numpy as np
import pytest
from tests.cases import for_each
from tests.helpers import TWO_PROCESSES

import penstock as ps
from penstock.image.header import jpeg_header

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")
pytest.importorskip("simplejpeg")
pytest.importorskip("cv2")
pytestmark = [pytest.mark.usefixtures("warm_processes"), pytest.mark.usefixtures("warm_pool")]

#: what is missing when each decoder is used
WITHOUT = {"simplejpeg": [], "cv2": ["simplejpeg"], "pillow": ["simplejpeg", "cv2"]}


def picture(height=75, width=100):
    """Smooth, so that JPEG changes it little, and different at every corner."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 255 // height, columns * 255 // width, (rows + columns) % 128], axis=2).astype(np.uint8)


def saved(image, kind, **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind, **options) if isinstance(image, np.ndarray) else image.save(
        file, kind, **options
    )
    return file.getvalue()


def jpeg(image=None, **options):
    return saved(picture() if image is None else image, "JPEG", **{"quality": 95, **options})


def by(decoder, call):
    """What `call` returns while this decoder is the best that is installed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in WITHOUT[decoder]:
            patch.setitem(sys.modules, name, None)
        return call()


def close(one, other, most=3.0):
    return one.shape == other.shape and np.abs(one.astype(int) - other.astype(int)).mean() < most


# ---------------------------------------------------------------------- what comes out


@for_each("decoder", WITHOUT)
def test_every_decoder_gives_the_image_in_every_mode_and_layout(decoder):
    image, data = picture(), jpeg()
    found = by(decoder, lambda: ps.decode_image(data))
    assert close(found, image)
    assert (found.dtype, found.flags.writeable, found.flags.c_contiguous) == (np.uint8, True, True)
    gray = by(decoder, lambda: ps.decode_image(data, mode="L"))
    assert close(gray, np.asarray(Image.fromarray(image).convert("L"))[..., None])
    alpha = by(decoder, lambda: ps.decode_image(data, mode="RGBA"))
    assert alpha.shape == (75, 100, 4)
    assert alpha[..., 3].min() == 255
    turned = by(decoder, lambda: ps.decode_image(data, layout="CHW"))
    assert turned.flags.c_contiguous
    assert close(turned.transpose(1, 2, 0), image)


@for_each("decoder", WITHOUT)
def test_a_number_decodes_a_jpeg_at_the_smallest_scale_that_is_not_below_it(decoder):
    data = jpeg(picture(375, 500))
    shapes = {
        400: (375, 500),
        375: (375, 500),
        189: (375, 500),
        188: (188, 250),
        94: (94, 125),
        47: (47, 63),
        5: (47, 63),
    }
    for size, shape in shapes.items():
        found = by(decoder, lambda size=size: ps.decode_image(data, size=size))
        assert found.shape[:2] == shape, size
        assert close(
            found, np.asarray(Image.fromarray(picture(375, 500)).resize(shape[::-1], Image.Resampling.BOX)), 6
        )


@for_each("decoder", WITHOUT)
def test_a_pair_gives_exactly_that_size(decoder):
    for kind in ("JPEG", "PNG"):
        data = saved(picture(375, 500), kind)
        for size in ((224, 224), (40, 300), (600, 20), (800, 900)):
            assert by(decoder, lambda size=size, data=data: ps.decode_image(data, size=size)).shape == (*size, 3)
        found = by(decoder, lambda data=data: ps.decode_image(data, size=(100, 80)))
        assert close(
            found, np.asarray(Image.fromarray(picture(375, 500)).resize((80, 100), Image.Resampling.BOX)), 6
        )


@for_each("decoder", WITHOUT)
def test_the_orientation_that_exif_says_is_applied(decoder):
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
            options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
            data = saved(picture(), kind, exif=exif, **options)
            expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
            found = by(decoder, lambda data=data: ps.decode_image(data))
            assert close(found, expected), (orientation, kind)
            small = by(decoder, lambda data=data: ps.decode_image(data, size=(30, 60)))
            assert close(small, np.asarray(Image.fromarray(expected).resize((60, 30))), 8), (orientation, kind)


@for_each("order", ["<", ">"])
def test_a_damaged_exif_does_not_stop_a_good_image(order):
    mark = b"II*\0" if order == "<" else b"MM\0*"
    for rest in (b"", struct.pack(order + "I", 9999), struct.pack(order + "IH", 8, 500)):
        exif = b"Exif\0\0" + mark + rest
        data = jpeg()
        data = data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]
        assert jpeg_header(data).orientation == 1
        assert ps.decode_image(data).shape == (75, 100, 3)


def gradient16():
    return (np.mgrid[0:40, 0:50][0] * 65535 // 40).astype(np.uint16)


def kinds():
    """Files of many kinds, and the array that each is in RGB."""
    image = Image.fromarray(picture())
    gray = image.convert("L")
    yield "gray jpeg", saved(gray, "JPEG", quality=95), np.asarray(gray.convert("RGB"))
    yield "progressive", jpeg(progressive=True), picture()
    yield "4:4:4", jpeg(subsampling=0), picture()
    yield "cmyk", saved(image.convert("CMYK"), "JPEG", quality=95), np.asarray(image.convert("CMYK").convert("RGB"))
    yield "gray png", saved(gray, "PNG"), np.asarray(gray.convert("RGB"))
    palette = image.quantize(64)
    yield "palette", saved(palette, "PNG"), np.asarray(palette.convert("RGB"))
    yield "palette with alpha", saved(palette, "PNG", transparency=b"\0" * 32), np.asarray(palette.convert("RGB"))
    alpha = image.copy()
    alpha.putalpha(gray)
    yield "alpha", saved(alpha, "PNG"), picture()
    yield "gray with alpha", saved(alpha.convert("LA"), "PNG"), np.asarray(gray.convert("RGB"))
    yield "one bit", saved(gray.convert("1"), "PNG"), np.asarray(gray.convert("1").convert("RGB"))
    high = np.repeat((gradient16() >> 8).astype(np.uint8)[..., None], 3, axis=2)
    yield "16 bits", saved(Image.fromarray(gradient16()), "PNG"), high
    yield "16 bits tiff", saved(Image.fromarray(gradient16()), "TIFF"), high
    for kind in ("BMP", "TIFF", "PPM"):
        yield kind, saved(image, kind), picture()
    yield "webp", saved(image, "WEBP", lossless=True), picture()
    yield "gif", saved(palette, "GIF"), np.asarray(palette.convert("RGB"))


@for_each("decoder", WITHOUT)
def test_every_kind_of_file_becomes_what_the_page_says(decoder):
    for name, data, expected in kinds():
        assert close(by(decoder, lambda data=data: ps.decode_image(data)), expected, 4), name
        gray = by(decoder, lambda data=data: ps.decode_image(data, mode="L"))
        assert close(gray, np.asarray(Image.fromarray(expected).convert("L"))[..., None], 4), name


def test_alpha_is_kept_where_the_mode_has_it():
    image = Image.fromarray(picture())
    image.putalpha(100)
    assert ps.decode_image(saved(image, "PNG"), mode="RGBA")[..., 3].tolist() == [[100] * 100] * 75


def test_a_jpeg_that_simplejpeg_does_not_know_goes_to_the_next_decoder(monkeypatch):
    def refuse(*args, **options):
        raise ValueError("Could not determine subsampling level of JPEG image")

    monkeypatch.setattr("simplejpeg.decode_jpeg", refuse)
    assert close(ps.decode_image(jpeg()), picture())


@for_each("wrap", [bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_anything_with_the_bytes_of_a_file_is_decoded(wrap):
    assert ps.decode_image(wrap(jpeg())).shape == (75, 100, 3)


# ---------------------------------------------------------------------- what is refused


@for_each("decoder", WITHOUT)
def test_a_jpeg_that_is_truncated_anywhere_raises(decoder):
    exif = Image.Exif()
    exif[0x010E] = "x" * 600  # a header with some length
    noise = np.random.default_rng(0).integers(0, 256, (75, 100, 3), dtype=np.uint8)
    thumbnail = jpeg(picture(8, 8))
    for data in (jpeg(noise, exif=exif), jpeg(noise, progressive=True), jpeg(noise, comment=thumbnail)):
        for stop in [*range(0, len(data), 512), 1, 2, 3, 4, len(data) - 3, len(data) - 2, len(data) - 1]:
            with pytest.raises(ps.DecodeError):
                by(decoder, lambda stop=stop, data=data: ps.decode_image(data[:stop]))


@for_each("kind", ["PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_another_file_that_is_truncated_anywhere_raises_unless_all_of_the_image_is_there(kind):
    data = saved(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8), kind)
    whole = ps.decode_image(data)
    for stop in range(0, len(data) - 30, 512):
        with pytest.raises(ps.DecodeError):
            ps.decode_image(data[:stop])
    for stop in range(len(data) - 30, len(data)):  # a checksum or an end mark may be all that is missing
        with suppress(ps.DecodeError):
            assert np.array_equal(ps.decode_image(data[:stop]), whole)


@for_each(
    "data, said",
    [
        (b"", "empty: 0 bytes"),
        (b"hello, world", "image that begins with b'hello, w' of 12 bytes cannot be decoded: it is of no kind"),
        (b"\x00" * 5000, "cannot be decoded"),
        (b"\xff\xd8\xff", "the JPEG of 3 bytes cannot be decoded: it ends within its header"),
        (b"\xff\xd8\xff\xd9", "no image data"),
        (b"\xff\xd8\xff\xda\x00\x04\x00\x00\xff\xd9", "does not say how large"),
        (b"\xff\xd8\xff\xc0\x00\x03\x00\x00\x00", "it ends within its header"),
        (b"\x89PNG\r\n\x1a\n" + b"\x00" * 100, "cannot be decoded"),
        (b"%PDF-1.7 and so on", "cannot be decoded"),
        (b"\x80\x04\x95 a pickle", "cannot be decoded"),
    ],
)
def test_what_is_no_image_says_so(data, said):
    with pytest.raises(ps.DecodeError, match=said):
        ps.decode_image(data)


def test_a_wrong_name_does_not_matter_and_a_wrong_magic_does():
    data = jpeg()
    with pytest.raises(ps.DecodeError):
        ps.decode_image(b"\x89PNG" + data[4:])


@for_each("data", [None, "text", 3, np.zeros((2, 2), np.uint8)])
def test_what_is_not_bytes_is_a_type_error(data):
    with pytest.raises(TypeError, match="bytes of an image file, got"):
        ps.decode_image(data)


def bomb(width, height):
    """A PNG of a few bytes that says it is this large."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def jpeg_bomb(width, height):
    data = jpeg()
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


@for_each("decoder", WITHOUT)
def test_a_decompression_bomb_is_refused_by_its_header(decoder):
    for data in (bomb(60_000, 60_000), jpeg_bomb(60_000, 60_000)):
        with pytest.raises(
            ps.DecodeError, match="60000 × 60000 has 3,600,000,000 pixels, and max_pixels is 89,478,485"
        ):
            by(decoder, lambda data=data: ps.decode_image(data))
    gif = saved(Image.new("L", (200, 100)), "GIF")
    with pytest.raises(ps.DecodeError, match="200 × 100 has 20,000 pixels, and max_pixels is 19,999"):
        ps.decode_image(gif, max_pixels=19_999)
    assert ps.decode_image(gif, max_pixels=20_000).shape == (100, 200, 3)


def test_an_icon_with_a_larger_image_than_its_header_says_is_refused_too():
    png = saved(Image.new("L", (200, 100)), "PNG")
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(png), 22)
    icon = struct.pack("<HHH", 0, 1, 1) + entry + png
    with (
        pytest.raises(ps.DecodeError, match="200 × 100 has 20,000 pixels, and max_pixels is 19,999"),
        pytest.warns(UserWarning, match="not the expected size"),
    ):
        ps.decode_image(icon, max_pixels=19_999)


def test_beyond_the_limit_of_pillow_the_message_says_whose_limit_it_is(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ps.DecodeError, match=r"Pillow's own: PIL\.Image\.MAX_IMAGE_PIXELS"):
        ps.decode_image(saved(Image.new("L", (200, 100)), "PNG"), max_pixels=20_000)


def test_a_file_that_is_a_program_is_not_run(monkeypatch):
    from PIL import EpsImagePlugin

    data = saved(Image.new("RGB", (4, 4)), "EPS")
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **kwargs: pytest.fail("it was run"))
    with pytest.raises(ps.DecodeError, match=r"begins with b'%!PS-Ado'.* it is of no kind"):
        ps.decode_image(data)


@for_each("value", [-1, 65_536, 2**31 - 1])
def test_values_of_32_bits_are_refused_rather_than_wrapped(value):
    values = np.array([[0, 65_535]], np.int32)
    assert ps.decode_image(saved(Image.fromarray(values), "TIFF"), mode="L").ravel().tolist() == [0, 255]
    values[0, 0] = value
    with pytest.raises(ps.DecodeError, match="values of 32 bits, which have no common range"):
        ps.decode_image(saved(Image.fromarray(values), "TIFF"))


@for_each(
    "options, said",
    [
        ({"mode": "BGR"}, "mode is one of L, RGB, RGBA"),
        ({"layout": "WHC"}, "layout is HWC or CHW"),
        ({"size": 0}, "size takes a whole number, at least 1"),
        ({"size": (1, 2, 3)}, "size is a number or"),
        ({"size": 2.5}, "size takes a whole number"),
        ({"max_pixels": 0}, "max_pixels takes"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(options, said):
    with pytest.raises(ps.PlanError, match=said):
        ps.decode_image(**options)


def test_without_a_decoder_the_message_says_what_to_install():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("simplejpeg", "cv2", "PIL"):
            patch.setitem(sys.modules, name, None)
        patch.delitem(sys.modules, "PIL.Image", raising=False)
        with pytest.raises(ps.MissingExtra, match=r"penstock\[images\]"):
            ps.decode_image(jpeg_bytes)


jpeg_bytes = jpeg()


# ---------------------------------------------------------------------- in a pipeline


def test_a_decoder_with_settings_is_a_value():
    decoder = ps.decode_image(size=32, mode="L")
    assert decoder == pickle.loads(pickle.dumps(decoder)) == ps.decode_image(size=32, mode="L")
    assert decoder != ps.decode_image(size=33, mode="L")
    assert hash(decoder) == hash(ps.decode_image(size=32, mode="L"))


def test_both_ways_to_map_it_work_on_processes():
    samples = [{"image": jpeg(picture(80, 80 + number)), "label": number} for number in range(4)]
    for fn, width in ((ps.decode_image, 80), (ps.decode_image(size=30), 40)):
        found = TWO_PROCESSES.run(ps.from_sequence(samples).map(fn, key="image", **TWO_PROCESSES.place))
        assert [sample["image"].shape[1] for sample in found] == [-(-(80 + n) * width // 80) for n in range(4)]
    assert "map(decode_image)" in str(ps.from_sequence(samples).map(ps.decode_image(size=3), key="image").explain())
