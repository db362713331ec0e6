"""`python -m pomona` is the `pomona` command."""

from pomona.cli import main

if __name__ == "__main__":
    main()
