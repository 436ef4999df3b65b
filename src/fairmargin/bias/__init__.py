"""What a method may know of the bias.

That is labels, nothing, features of a capturing model, or clusters of these features.
"""
