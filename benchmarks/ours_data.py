"""Our data set for data.py: generate, solve, prove unique, hash, write.

python benchmarks/ours_data.py TRAIN_ROWS TEST_ROWS FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from usage import print_report

from rl_core.config.run import DataConfig
from rl_core.data.dataset import write_dataset
from rl_core.envs.countdown import Countdown


def main() -> None:
    """Prints a report: CPU seconds without imports, peak megabytes with them."""
    data = DataConfig(train_size=int(sys.argv[1]), test_size=int(sys.argv[2]))
    start = time.process_time()
    write_dataset(Countdown(), data, Path(sys.argv[3]))
    print_report(time.process_time() - start)


if __name__ == "__main__":
    main()
