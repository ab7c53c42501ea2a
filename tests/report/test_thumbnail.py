import base64
import io

import numpy as np
import pytest

from snapens.report import thumbnail


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "L"), (3, "RGB"), (4, "RGB")])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (5, 7), (96, 96)])
def test_pillow_reads_back_the_pixels(channels, mode, height, width):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
    content = base64.b64decode(thumbnail.address(pixels).removeprefix("data:image/png;base64,"))
    with image.open(io.BytesIO(content)) as opened:
        assert (opened.mode, opened.size) == (mode, (width, height))
        assert np.array_equal(np.asarray(opened).reshape(height, width, -1), pixels[:, :, : 3 if mode == "RGB" else 1])
