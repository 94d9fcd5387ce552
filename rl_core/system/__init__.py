"""The machine: files, disks, processes, signals, network, cards and threads."""
