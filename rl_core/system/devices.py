"""Names of the devices that models lie on, as what was learned about memory is filed under."""

from __future__ import annotations

import psutil
import torch


def describe_device(device: torch.device) -> str:
    """Returns a device's name and memory."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, total_bytes = properties.name, properties.total_memory
    else:
        name, total_bytes = "cpu", psutil.virtual_memory().total
    return f"{name} {total_bytes / 2**30:.1f} GiB"
