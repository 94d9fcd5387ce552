"""bitsandbytes, an optional package: loaded if a setting needs it, else an error with a remedy."""

import importlib
from importlib.util import find_spec
from types import ModuleType

import torch


def load_bitsandbytes(setting: str, device: torch.device) -> ModuleType:
    """Returns the package, for a setting (as one would type it) and the device that computes.

    Raises:
        ValueError: it is not installed, or has no library for this machine's device.
    """
    if find_spec("bitsandbytes") is None:
        raise ValueError(f"{setting} needs the package bitsandbytes: pip install bitsandbytes")
    package = importlib.import_module("bitsandbytes")
    extension = importlib.import_module("bitsandbytes.cextension")
    if device.type == "cuda" and isinstance(
        extension.lib, extension.ErrorHandlerMockBNBNativeLibrary
    ):
        raise ValueError(
            f"{setting}: bitsandbytes {package.__version__} has no library for CUDA "
            f"{torch.version.cuda}: install another version of it, or leave the setting out"
        )
    return package
