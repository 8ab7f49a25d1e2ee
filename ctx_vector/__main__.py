"""`python -m ctx_vector`: the command line."""

from ctx_vector.cli import main

if __name__ == "__main__":
    main()
