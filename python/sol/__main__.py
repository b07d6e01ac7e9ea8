"""``python -m sol`` lists frontends, devices, libraries and compilers, and says why one is not available."""

import importlib

from sol import __version__, _core
from sol._names import FRONTENDS


def frontend_rows():
    """Yields (kind, name, available, detail) for each frontend; ``detail`` is a version or the reason."""
    for name, package in FRONTENDS.items():
        try:
            module = importlib.import_module(package)
            importlib.import_module(f"sol.{name}")
        except Exception as error:
            # A framework that fails to import must not end the listing: its error is the reason.
            yield "frontend", name, False, f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            yield "frontend", name, True, f"{package} {module.__version__}"


def main():
    """Prints one row per frontend, device, library, compiler and cache."""
    print(f"SOL {__version__} (libsol {_core.version()})")
    rows = [*frontend_rows(), *_core.query()]
    kinds = max(len(row[0]) for row in rows)
    names = max(len(row[1]) for row in rows)
    for kind, name, available, detail in rows:
        print(
            f"{kind:{kinds}}  {name:{names}}  {'yes' if available else 'no ':3}  {_core.clean(detail)}"
        )


if __name__ == "__main__":
    main()
