"""``python -m whitenorm.lab`` is the ``whitenorm`` command; torchrun starts it for replicas."""

import sys

from torch.distributed.elastic.multiprocessing.errors import record


@record  # so that torchrun shows the error of the replica that failed first
def main() -> None:
    """Runs the command."""
    try:
        from whitenorm.lab.cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("whitenorm"):
            raise
        sys.exit(
            f"the command whitenorm needs the laboratory, and {error.name} isn't installed: "
            "pip install 'whitenorm[lab]'"
        )
    app(prog_name="whitenorm")


if __name__ == "__main__":
    main()
