"""A run folder: building what it names, writing it while training, reading it afterwards."""
