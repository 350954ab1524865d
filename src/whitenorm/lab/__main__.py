"""``python -m whitenorm.lab`` is the ``whitenorm`` command; torchrun starts it for replicas."""

from torch.distributed.elastic.multiprocessing.errors import record

from whitenorm.lab.cli import app


@record  # so that torchrun shows the error of the replica that failed first
def main() -> None:
    """Runs the command."""
    app(prog_name="whitenorm")


if __name__ == "__main__":
    main()
