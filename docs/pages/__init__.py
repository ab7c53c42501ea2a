"""What the numbers of our own pages are made with; `docs/results.py` writes the pages."""
