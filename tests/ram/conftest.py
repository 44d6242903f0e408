"""Each image is opened once for all tests of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memcensus.ram.compressed import open_zstd
from memcensus.ram.image import Image
from memcensus.ram.linux import clock, kernel, process
from memcensus.ram.linux.rules import run
from memcensus.ram.linux.survey import Survey
from memcensus.subject import silent
from tests.ram.truth import Truth

if TYPE_CHECKING:
    from memcensus.ram.linux.clock import Clock
    from memcensus.ram.linux.kernel import Kernel
    from memcensus.ram.linux.process import Processes

REPOSITORY = Path(__file__).parents[2]
SAMPLE = REPOSITORY / "samples" / "linux.raw.zst"
MATRIX = ("linux-6.1-4level", "linux-6.12-4level", "linux-6.12-5level")


@dataclass(frozen=True)
class Opened:
    image: Image
    truth: Truth
    kernel: Kernel
    clock: Clock
    processes: Processes
    survey: Survey


@cache
def opened(name: str) -> Opened:
    if name == "sample":
        image = open_zstd(SAMPLE, SAMPLE.name, silent)
        truth = Truth.load(SAMPLE.with_name("linux.truth.zst"))
    else:
        raw = REPOSITORY / "images" / f"{name}.raw"
        image = Image.open(raw, raw.name)
        truth = Truth.load(raw.with_suffix(".truth"))
    found = kernel.find(image, silent)
    times = clock.read(found)
    processes = process.read(found, times)
    survey = Survey.start(found, processes)
    run(survey, silent)
    return Opened(image, truth, found, times, processes, survey)


@pytest.fixture(scope="session", params=["sample", *MATRIX])
def guest(request: pytest.FixtureRequest) -> Opened:
    """An image of a real machine with the machine's own account of itself."""
    name = str(request.param)
    raw = REPOSITORY / "images" / f"{name}.raw"
    if name != "sample" and not (raw.exists() and raw.with_suffix(".truth").exists()):
        pytest.skip(f"images/{name}.raw is not there; make images builds it")
    return opened(name)


@pytest.fixture(scope="session")
def sample() -> Opened:
    """The image that ships in samples/."""
    return opened("sample")
