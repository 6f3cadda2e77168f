"""Published datasets by name, and a user's own by path.

They live in one data folder, `FOLDER/<name>/<published file>`: the argument `data_dir`, else the environment
variable `CDFL_DATA`, else `~/.cache/cdfl`. Nothing is downloaded unless `fetch` is called (`cdfl data fetch NAME`).
"""

from cdfl.data.sources.catalogue import SOURCES
from cdfl.data.sources.on_disk import Report, check, check_is_here, data_folder, fetch, find_folder, load_source
from cdfl.data.sources.source import RemoteFile, Source

__all__ = [
    "SOURCES",
    "RemoteFile",
    "Report",
    "Source",
    "check",
    "check_is_here",
    "data_folder",
    "fetch",
    "find_folder",
    "load_source",
]
