"""The engine: the only training loop, and its data on the device."""
