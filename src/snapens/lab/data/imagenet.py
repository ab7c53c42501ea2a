"""ImageNet with 1,000 classes (ILSVRC 2012): folders of JPEG files that are decoded when they are needed."""

from pathlib import Path

from .files import PhotoFiles
from .folder import PHOTOS, listed, subfolders
from .images import ImageData, Images
from .sources import missing


def read(root: Path) -> ImageData:
    """Read train/WNID/*.JPEG and val/WNID/*.JPEG; the validation set is the test set, as in the literature."""
    folder = root / "imagenet" if (root / "imagenet").is_dir() else root
    classes = subfolders(folder / "train")
    if not classes or not subfolders(folder / "val"):
        raise missing(root, "train/WNID/*.JPEG and val/WNID/*.JPEG (validation images sorted into such folders too)")
    parts = (listed(folder, split, classes) for split in ("train", "val"))
    train, val = (Images(PhotoFiles(folder, names), labels, names) for names, labels in parts)
    return ImageData("imagenet", train, val, classes, **PHOTOS)
