"""`python -m cesar`: the command line."""

from cesar.cli import main

if __name__ == "__main__":
    main()
