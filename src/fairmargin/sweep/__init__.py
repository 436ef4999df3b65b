"""Many runs: comparing methods, tuning them, and where the runs run.

compare   several methods × seeds on one dataset, and their table
tune      choose the settings of methods on validation data
demo      two methods on one dataset, and a page about them
base      `Engine`: runs tasks; the engines are in local (with workers) and ray, and engines
          finds them by name
"""
