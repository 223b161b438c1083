"""What a machine has run out of is said in a line; everything else stays what it is."""

import errno
from pathlib import Path

import pytest
import torch

from fedloom.core.errors import ClientError, RunFolderError
from fedloom.runs.storage.folders import explain_shortage


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "x"), "runs/a: no space left on the device; the last checkpoint is intact: free"),
        (OSError(errno.EDQUOT, "x"), "quota"),
        (OSError(errno.EFBIG, "x"), "ulimit -f"),
        (OSError(errno.ENOMEM, "x"), "out of memory"),
        (MemoryError(), "runs/a: out of memory; .* smaller batch_size and continue with existing='resume'"),
        (ClientError(3, 1, "phase 0", MemoryError()), "out of memory"),
        (ClientError(3, 1, "phase 0", OSError(errno.ENOSPC, "x")), "no space left"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "out of memory"),
    ],
)
def test_shortages_are_one_line(error: Exception, says: str) -> None:
    with pytest.raises(RunFolderError, match=says) as caught, explain_shortage(Path("runs/a")):
        raise error
    assert "\n" not in str(caught.value)


def test_what_torch_says_when_it_cannot_allocate() -> None:
    with pytest.raises(RunFolderError, match="and repeat the command"), explain_shortage(Path("runs/a"), resumes=True):
        torch.empty(1 << 60, dtype=torch.uint8)


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x"), OSError(errno.EACCES, "x")])
def test_other_errors_stay(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, explain_shortage(Path("runs/a")):
        raise error
    assert caught.value is error
