"""``python -m whitenorm.lab`` is the ``whitenorm`` command."""

from whitenorm.lab.cli import app

if __name__ == "__main__":
    app(prog_name="whitenorm")
