"""The records of a run: its folder, its log, its state, a gallery of images and measured curves."""
