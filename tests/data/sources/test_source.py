from pathlib import Path

import pytest

from cdfl.data import DataError
from cdfl.data.sources.source import FETCH_AGAIN, reading

FILE = Path("mine.gz")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (EOFError("ended early"), r"mine.gz is truncated or corrupted \(ended early\); delete it and fetch it again"),
        (SyntaxError("broken PNG file"), r"mine.gz is truncated or corrupted \(broken PNG file\); delete it"),
        (OSError("a decoder's word"), r"mine.gz is truncated or corrupted \(a decoder's word\)"),
        (PermissionError(13, "Permission denied"), "mine.gz cannot be read: Permission denied; check who may read it$"),
        (PermissionError(13, "Permission denied", "a/b"), "a/b cannot be read: Permission denied"),
        (OSError(5, "Input/output error"), "mine.gz cannot be read: Input/output error$"),
        (FileNotFoundError(2, "No such file"), "mine.gz is missing; `cdfl data list` shows"),
        (DataError("said already"), "^said already$"),
    ],
)
def test_only_broken_content_is_to_be_fetched_again(error, message):
    with pytest.raises(DataError, match=message), reading(FILE, FETCH_AGAIN):
        raise error
