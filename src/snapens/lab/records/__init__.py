"""What a run leaves behind: its folder, its log, scores, disputed images and measured curves."""
