"""`python -m turnwise`: the command line where no script of that name is on the path."""

from turnwise.cli.app import main

if __name__ == "__main__":
    main()
