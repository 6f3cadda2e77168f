"""Load published datasets by name, and a user's own by path.

Published datasets are in the data folder, as `FOLDER/<name>/<published file>`. The folder is the argument `data_dir`,
else the environment variable `CDFL_DATA`, else `~/.cache/cdfl`. Only `fetch` (`cdfl data fetch NAME`) downloads.
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
