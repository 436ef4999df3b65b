"""Many runs: comparing methods, tuning them, and where the runs run."""
