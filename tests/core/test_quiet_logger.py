"""Loggers that say errors alone for a while."""

import contextlib
import logging

from fedloom.core.console import quiet_logger


def test_warnings_are_kept_back_and_errors_are_not(caplog):
    logger = logging.getLogger("fedloom.test_quiet_logger")
    with contextlib.suppress(ValueError), quiet_logger(logger.name):
        logger.warning("kept back")
        logger.error("said")
        raise ValueError("the level comes back all the same")
    logger.warning("said again")
    assert caplog.messages == ["said", "said again"]
