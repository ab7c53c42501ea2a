"""The atlas of the data set `glyphs`: twelve fonts × 62 characters as 24 × 24 pixels.

    python docs/atlas.py     writes src/snapens/lab/data/glyphs.npz; needs matplotlib, which brings the fonts

DejaVu Sans, Sans Mono and Serif (the Bitstream Vera licence; DejaVu's changes are in the public domain) and
STIX General (SIL Open Font License 1.1). Both let anyone use the fonts and pass on what is drawn with them; the
pictures hold no font. FreeType's versions may differ in a pixel, so the atlas is kept in the repository.
"""

from pathlib import Path

import numpy as np
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralBolIta",
    "STIXGeneralItalic",
)
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SIDE, EM, BASELINE = 24, 20, 17.5  # pixels: capitals reach from row 3 to the baseline, descenders to row 22
TARGET = Path(__file__).parent.parent / "src/snapens/lab/data/glyphs.npz"


def glyph(font: ImageFont.FreeTypeFont, character: str) -> np.ndarray:
    """One character, white on black, on the baseline and in the middle, as (24, 24) levels of 0 to 15."""
    cell = Image.new("L", (SIDE, SIDE))
    left, _, right, _ = font.getbbox(character, anchor="ls")
    place = ((SIDE - left - right) / 2, BASELINE)
    ImageDraw.Draw(cell).text(place, character, fill=255, font=font, anchor="ls")
    return np.asarray(cell) // 16


if __name__ == "__main__":
    folder = Path(get_data_path()) / "fonts/ttf"
    fonts = [ImageFont.truetype(folder / f"{name}.ttf", EM) for name in FONTS]
    levels = np.array([[glyph(font, character) for character in CHARACTERS] for font in fonts], np.uint8)
    np.savez_compressed(TARGET, levels=levels)
    print(f"{TARGET}: {levels.shape}, {TARGET.stat().st_size / 1024:.0f} KB")
