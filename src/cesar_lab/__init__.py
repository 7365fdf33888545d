"""The laboratory: everything that trains in simulation, draws, compares and reproduces.

It stands on the library `cesar`, which never imports it. `data` has the data sets, `learn` models and local training, `run`
experiments from a file to a folder of results, `show` tables and plots, `attack` what an adversary infers, `paper` the
paper's tables and figures, `bench` measurements, `cli` the commands. Begin with `run.execute`.
"""
