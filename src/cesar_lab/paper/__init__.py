"""Every table and figure of the paper, run again and set beside the paper's own numbers.

The paper is data: `figures` has a file for each, with what is run at each scale, what the paper printed, which claims it makes
and how each is decided; `scales.toml` has the datasets' settings. `catalogue` reads them, `running` runs them, `counting`
counts bytes without training, `measured` attacks and draws graphs, `outcome` reads what was left and makes tables and
charts of it, `verdicts` decides, `document` writes. Begin with a file in `figures`. Nothing here loads torch before something
runs, so that the command line knows them all.
"""
