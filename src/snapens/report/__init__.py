"""Reports: one self-contained page about some runs, and the paper's tables and figures from the ledger."""
