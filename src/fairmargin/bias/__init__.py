"""What a method may know of the bias: labels, nothing, features of a capturing model, or clusters of these."""
