"""The colours of pools can be told apart by people who see fewer colours than others, in light and in dark."""

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
VISIONS = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = XYZ.sum(axis=1)
FAR_APART = 20.0
"""CIE76; 2.3 is just noticeable, ten times that is another colour."""


def lab(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    t = XYZ @ np.clip(linear, 0, 1) / WHITE
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def linear(code: str) -> NDArray[np.float64]:
    value = np.array([int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_three_pools_are_told_apart(theme: str, vision: str) -> None:
    light, dark = (files("simulations.report") / "style.css").read_text().split("prefers-color-scheme: dark", 1)
    codes = dict(re.findall(r"--(c[012]): #([0-9a-f]{6})", light if theme == "light" else dark))
    seen = {name: lab(np.array(VISIONS[vision]) @ linear(code)) for name, code in codes.items()}
    distances = {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in combinations(sorted(seen), 2)}
    assert len(distances) == 3
    assert {pair: distance for pair, distance in distances.items() if distance < FAR_APART} == {}
