"""The paper as data: its cells and figures, and the ledger of our measurements."""
