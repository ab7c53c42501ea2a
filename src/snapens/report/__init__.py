"""What runs are worth, for people: one self-contained page, the paper's tables and figures, from run folders alone."""
