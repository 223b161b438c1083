"""Let another library's logger report only errors for a while."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_logger(name: str) -> Iterator[None]:
    """Keep back the logger's messages below the level of errors, such as warnings that do not concern the caller."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
