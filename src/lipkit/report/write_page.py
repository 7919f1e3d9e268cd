"""A report on disk."""

from pathlib import Path

from lipkit._files import write_whole
from lipkit.errors import ArgumentError
from lipkit.report.html.page import page
from lipkit.report.results.contents import Contents


def write(contents: Contents, folder: str | Path) -> tuple[Path, Path]:
    """Write `report.json` and `report.html` to a folder, made if need be; returns their paths, the page first.

    Both are made before anything is written, and each takes its place in one step: an interrupted or failing run leaves
    what was there. The data go first, and the page names their hash, so that a page of other data shows.
    """
    folder = Path(folder)
    data, shown = contents.to_json().encode(), page(contents).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{folder} cannot be made a folder for the report ({error.strerror}).") from error
    paths = folder / "report.html", folder / "report.json"
    write_whole(paths[1], data)
    write_whole(paths[0], shown)
    return paths
