"""What an operator looks at: the check before a run, the status page, logs, and peers as processes of this machine.

Imports every room of peers but `api`. Begin with `check`.
"""
