"""`python -m runtime_pack.cli` is `runtime-pack`."""

from runtime_pack.cli import main

if __name__ == "__main__":
    main()
