"""The engine: the only training loop, and all that it reads and keeps on the device."""
