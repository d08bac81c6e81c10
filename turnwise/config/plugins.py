"""Code that registers components when it is imported: the modules of a folder, and installed packages.

A registry first imports the modules of its own folder. A name that it does not know then may be one that a method registers: the folders
that were added with `look_in` are imported. So looking up a name of the registry's own never pays for the other folders.

Installed packages are found by the entry-point group `turnwise.plugins`:

    [project.entry-points."turnwise.plugins"]
    mine = "my_package.turnwise_pieces"            # a module that registers when it is imported
    more = "my_package.setup:register_all"         # or a function that is called

They are loaded once, when a name is first looked up. A plugin that fails is named in a warning, and the others work. Whoever installs a
package trusts it, so there is no question here.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from importlib import import_module
from pkgutil import iter_modules

GROUP = "turnwise.plugins"
_done = False
_folders: list[str] = []  # packages whose modules register components of any kind, and were not imported yet


def import_folder(package: str, without: Collection[str] = ()) -> None:
    """Import the modules of a package, so that they register themselves."""
    for module in iter_modules(import_module(package).__path__):
        if module.name not in without:
            import_module(f"{package}.{module.name}")


def look_in(package: str) -> None:
    """Import the modules of this package when a name is looked up that is not known otherwise."""
    _folders.append(package)


def load_folders() -> None:
    """Import the packages that were added with `look_in`, once per process."""
    while _folders:
        import_folder(_folders.pop(0))


def load() -> None:
    """Load every plugin, once per process."""
    global _done
    if _done:
        return
    _done = True
    from importlib.metadata import entry_points  # slow to import

    for point in entry_points(group=GROUP):
        try:
            loaded = point.load()
            if point.attr:
                loaded()
        except (Exception, SystemExit) as error:  # any failure of one package: the others must stay usable
            of = f" of the package {point.dist.name}" if point.dist is not None else ""
            named = f"the plugin {point.name!r} ({point.value}){of}"
            warnings.warn(f"{named} cannot be used: {type(error).__name__}: {error}", stacklevel=2)


def again() -> None:
    """Look for plugins again, after the installed packages have changed."""
    global _done
    _done = False
