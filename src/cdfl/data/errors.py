"""The error of this package."""


class DataError(ValueError):
    """Data that cannot be used. The message says what came, what was expected and what to do."""
