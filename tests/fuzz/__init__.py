"""Random input of every kind: each case comes from a kind and a seed, and replays alone.

make fuzz                                    ten minutes of new cases
python -m tests.fuzz --replay table:1234     one case, with its words and its output
"""
