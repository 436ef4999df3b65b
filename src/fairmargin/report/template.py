"""Where the pages' templates come from, and the look they share."""

from typing import Any

import jinja2

from fairmargin.report import figures


def environment(package: str) -> jinja2.Environment:
    """For `page.html` of the package; `style.css` is the report's, so that figures of one page fit another."""
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(name, ".") for name in (package, "fairmargin.report")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    colours: dict[str, Any] = {
        "heat": {theme: figures.heat_colours(theme) for theme in ("light", "dark")}
    }
    made.globals |= colours | {"categories": figures.CATEGORIES}
    return made
