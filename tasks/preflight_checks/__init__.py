"""What preflight looks at: device, leftovers, memory, disk and hours."""
