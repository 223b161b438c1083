"""Data frames of pandas, polars or Arrow, which are read as the source `parquet` reads a file."""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedloom.core.errors import DataError, FedloomError


def is_frame(data: Any) -> bool:
    """Tell whether data are a table with named columns."""
    return hasattr(data, "columns") and not isinstance(data, type)


def title_of(frame: Any) -> str:
    """Return the name of a frame in messages."""
    return f"the {type(frame).__name__}"


@contextlib.contextmanager
def as_parquet(frame: Any) -> Iterator[tuple[Path, Callable[[str], str]]]:
    """Yield a Parquet file with the rows of `frame`, which is deleted after the block, and a function that names the
    frame in a text in place of the file, as errors in the block do. Raises `DataError` for a frame that cannot be
    written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    title, names = title_of(frame), [str(name) for name in getattr(frame, "column_names", frame.columns)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{title}: {len(twice)} names of columns occur twice, e.g. '{twice[0]}'; give each its own")
    if not hasattr(frame, "__arrow_c_stream__") and not hasattr(frame, "iloc"):
        raise DataError(f"{title}: no rows can be read from it; give a frame in memory, of a lazy one its collect()")
    with tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
        path = Path(folder) / "frame.parquet"
        try:
            pq.write_table(pa.Table.from_pandas(frame) if hasattr(frame, "iloc") else pa.table(frame), path)
        except (pa.ArrowException, ValueError, TypeError) as error:
            why = " ".join(str(error).split())[:200]
            raise DataError(f"{title}: its columns are no table of numbers and words ({why})") from None

        def named(text: str) -> str:
            return text.replace(str(path), title)

        try:
            yield path, named
        except FedloomError as error:
            error.args = tuple(named(str(part)) for part in error.args)
            raise
