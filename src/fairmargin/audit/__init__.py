"""Is this dataset, or this model, biased, and by what?"""
