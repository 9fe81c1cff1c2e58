"""Images: decoding, and the usual steps before a batch.

Each name is called with settings and gives a function for `map`, which can be sent to worker processes::

    data.map(ps.decode_image(size=256), key="image", workers=4)
        .map(ps.image.random_resized_crop(224), key="image", rng=True)
        .map(ps.image.flip(), key="image", rng=True)

Images are uint8 arrays of height × width × channels. Other augmentations are left to the libraries for them.
"""

from penstock.image.decode import decode_image
from penstock.image.steps import center_crop, flip, normalize, random_resized_crop, resize

__all__ = ["center_crop", "decode_image", "flip", "normalize", "random_resized_crop", "resize"]
