"""The command line: app.py, and one file for each command."""
