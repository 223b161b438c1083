"""What a release is made of: the README of its page, the conda recipe, the workflow."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import yaml

pytest.importorskip("hatchling.metadata.plugin.interface", reason="needs the dev extra: make setup")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def readme(home: str) -> str:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.with_links_to(home, (ROOT / "README.md").read_text())


def test_links_of_a_released_readme_lead_to_files_of_the_repository() -> None:
    home = "https://example.org/fedloom/blob/v1"
    targets = re.findall(r"\]\(([^)\s]+)\)", readme(home))
    assert len(targets) > 20
    raw = home.replace("/blob/", "/raw/")
    for target in targets:
        assert target.startswith((f"{home}/", f"{raw}/"))
        assert (ROOT / target.removeprefix(f"{home}/").removeprefix(f"{raw}/").partition("#")[0]).exists()
    assert f"![Ten clients by ten digit classes: bubbles show who holds how many samples of what]({raw}/" in readme(
        home
    )


def test_without_an_address_a_readme_has_no_relative_link() -> None:
    assert not re.findall(r"\]\((?!https?:)", readme(""))
    assert "Apache-2.0" in readme("")


def test_the_conda_recipe_has_the_requirements_and_the_version_of_the_project() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    names = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    wanted = {}
    for requirement in PROJECT["dependencies"]:
        name, versions = re.fullmatch(r"([A-Za-z0-9-]+)(.*)", requirement).groups()  # type: ignore[union-attr]
        wanted[names.get(name, name.lower())] = versions
    wanted["python"] = PROJECT["requires-python"]
    stated = dict(line.split(" ", 1) for line in recipe["requirements"]["run"])
    assert stated == wanted
    assert f'"{recipe["context"]["version"]}"' in (ROOT / "src" / "fedloom" / "_version.py").read_text()


def test_the_release_workflow_builds_tries_and_publishes_in_this_order() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert [*jobs] == ["build", "image", "attach", "publish"]
    assert all({"build", "image"} == {*jobs[name]["needs"]} for name in ("attach", "publish"))
