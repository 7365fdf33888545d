"""Every table and figure of the paper, run again and set beside the paper's own numbers.

`figures` has a module for each: what it runs, how its section reads, which claims it checks, and what the paper printed.
The rest is shared. None of these modules loads torch before something runs, so that the command line knows them all.
"""
