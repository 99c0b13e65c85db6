"""`python -m torchsleuth` is the command `sleuth`."""

from torchsleuth.cli.main import main

if __name__ == "__main__":
    main()
