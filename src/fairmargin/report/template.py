"""Templates of pages, and the look they share."""

import jinja2

from fairmargin.report.colours import CATEGORIES, heat_colours


def environment(package: str) -> jinja2.Environment:
    """Return the environment that renders `page.html` of a package.

    Args:
        package: whose folder holds the template. `style.css` comes from the report, so that figures
            of one page fit another.
    """
    folders = [jinja2.PackageLoader(name, ".") for name in (package, "fairmargin.report")]
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["heat"] = {"light": heat_colours("light"), "dark": heat_colours("dark")}
    made.globals["categories"] = CATEGORIES
    return made
