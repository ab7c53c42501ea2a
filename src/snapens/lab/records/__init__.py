"""The records of a run: its folder, its log, scores, a gallery of images and measured curves."""
