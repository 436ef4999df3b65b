"""What a process is: ranks, signals, threads, memory, and settings made before PyTorch starts."""
