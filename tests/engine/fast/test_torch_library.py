"""C++ that uses torch is compiled once, in the background; without a compiler there is a reason."""

import pytest
import torch

from fedloom.core import trees as trees_module
from fedloom.core.errors import ConfigError
from fedloom.core.trees import weighted_mean
from fedloom.engine.fast import torch_library
from fedloom.engine.fast.kernels import compiling
from fedloom.engine.fast.kernels.compiling import FLAGS, Compilation, KernelError, compiler
from fedloom.engine.fast.torch_library import TorchLibrary

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
SOURCE = """#include <torch/library.h>
#include <ATen/core/Tensor.h>
static int64_t count(const at::Tensor& tensor) { return tensor.numel(); }
TORCH_LIBRARY(fedloom_test_library, library) { library.def("count(Tensor t) -> int", count); }
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "count.cpp").write_text(SOURCE)
    return tmp_path / "count.cpp"


@needs_compiler
def test_an_operator_of_its_own(source):
    library = TorchLibrary(source)
    assert library.wait(), library.obstacle
    assert torch.ops.fedloom_test_library.count(torch.zeros(2, 3)) == 6


@needs_compiler
def test_a_file_that_does_not_compile_has_an_obstacle_of_one_line(source):
    source.write_text("#include <torch/none_of_this.h>\n")
    library = TorchLibrary(source)
    assert not library.wait()
    assert "could not compile count.cpp" in library.obstacle
    assert "\n" not in library.obstacle


def test_without_a_compiler_it_is_never_started(source, monkeypatch):
    monkeypatch.setattr(torch_library, "compiler", lambda: None)
    library = TorchLibrary(source)
    assert not library.wait()
    assert library.obstacle == "there is no C++ compiler"


@needs_compiler
def test_a_cache_folder_that_nobody_knows_is_an_obstacle_of_one_line(source, monkeypatch):
    def unknown():
        raise ConfigError("no folder for the cache; set FEDLOOM_CACHE")

    monkeypatch.setattr(compiling, "cache_dir", unknown)
    library = TorchLibrary(source)
    assert not library.wait()
    assert library.obstacle == "no folder for the cache; set FEDLOOM_CACHE"


COUNTING = """#!/bin/sh
echo called >> "$CALLS"
sleep 1
exec {compiler} "$@"
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The file in which a compiler notes its calls."""
    program = tmp_path / "c++"
    program.write_text(COUNTING.format(compiler=compiler()))
    program.chmod(0o755)
    monkeypatch.setattr(compiling, "compiler", lambda: str(program))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@needs_compiler
def test_two_runs_compile_it_once(source, calls):
    source.write_text("int one() { return 1; }\n")
    first, second = (Compilation(source, FLAGS) for _ in range(2))
    assert not second.finished()
    assert first.finished(wait=True)
    assert second.finished(wait=True)
    assert calls.read_text().splitlines() == ["called"]


@needs_compiler
def test_a_run_that_waits_compiles_it_where_the_first_one_failed(source, calls):
    source.write_text("no C++\n")
    first, second = (Compilation(source, FLAGS) for _ in range(2))
    for compilation in (first, second):
        with pytest.raises(KernelError, match="could not compile count"):
            compilation.finished(wait=True)
    assert calls.read_text().splitlines() == ["called"] * 2


@needs_compiler
def test_a_cache_folder_that_cannot_be_written_is_named(source, monkeypatch):
    source.write_text("int one() { return 1; }\n")
    first = Compilation(source, FLAGS)
    assert first.finished(wait=True)
    first.path.unlink()
    monkeypatch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only")))
    with pytest.raises(KernelError, match="cannot be written"):
        Compilation(source, FLAGS)


def summed(trees, weights):
    return weighted_mean([dict(enumerate(tree)) for tree in trees], weights)


@needs_compiler
@pytest.mark.parametrize("odd", [[], [torch.arange(20.0).view(4, 5).T]], ids=["contiguous", "transposed"])
def test_sums_over_clients_have_the_bits_of_torch(monkeypatch, odd):
    """Large entries, small ones that are summed together, one of no dimension; with another layout torch sums."""
    assert torch_library.replay_library().wait()
    shapes = [(130, 257), (7,), (), (3, 2), (20_000,)]
    trees = [[torch.randn(shape) * 10**k for shape in shapes] + odd for k in range(19)]
    weights = [1 + k / 7 for k in range(19)]
    assert trees_module._compiled_add is not None
    compiled = summed(trees, weights)
    monkeypatch.setattr(trees_module, "_compiled_add", None)
    assert all(torch.equal(value, compiled[name]) for name, value in summed(trees, weights).items())


@needs_compiler
def test_a_sum_that_does_not_fit_is_left_to_torch():
    assert torch_library.replay_library().wait()
    add = torch.ops.fedloom_replay.add_weighted.default
    assert torch_library.has_bits_of_torch(add)
    for total, entries in (
        (torch.zeros(3, dtype=torch.float64), [torch.ones(3), torch.ones(2)]),
        (torch.zeros(3, dtype=torch.float64), [torch.ones(3), torch.ones(3).double()]),
        (torch.zeros(3), [torch.ones(3), torch.ones(3)]),
        (torch.zeros(4, dtype=torch.float64), [torch.ones(3), torch.ones(3)]),
        (torch.zeros(3, dtype=torch.float64), [torch.ones(3)]),
    ):
        assert not add(total, entries, [1.0, 2.0])
        assert not total.any()


def test_other_bits_than_those_of_torch_are_seen():
    assert not torch_library.has_bits_of_torch(lambda total, entries, weights: True)
