"""Numbers as text for pages: with a typographic minus, and without a negative zero."""


def decimal(value: float, decimals: int) -> str:
    """A number with a fixed number of decimals.

    Examples:
        >>> decimal(-0.444, 2), decimal(-0.001, 2)
        ('−0.44', '0.00')
    """
    # NumPy's own round is not exact
    return f"{round(float(value), decimals) + 0.0:.{decimals}f}".replace("-", "−")


def signed(difference: float, decimals: int = 2) -> str:
    """A difference with its sign.

    Examples:
        >>> signed(-0.444), signed(0.5), signed(-0.001)
        ('−0.44', '+0.50', '+0.00')
    """
    return f"{round(float(difference), decimals) + 0.0:+.{decimals}f}".replace("-", "−")
