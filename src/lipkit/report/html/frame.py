"""What all pages have in common: a document that needs nothing else, loads nothing and runs nothing."""

from html import escape

from lipkit.report.figure_style import drawn_by
from lipkit.report.html.stylesheet import STYLESHEET

# Forbids the browser to load anything; images are part of the file.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def frame_page(title: str, above: str, main: str, digest: str, data: str = "report.json") -> str:
    """An HTML document of one file.

    Args:
        title: The heading, plain text.
        above: A line above it, plain text.
        main: HTML of the contents.
        digest: The SHA-256 of the data behind the page.
        data: The file that holds these data.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta name="generator" content="{escape(drawn_by())}">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLESHEET}</style></head>\n'
        f'<body><header><p class="soft">{escape(above)}</p><h1>{escape(title)}</h1></header>\n'
        f"<main>{main}</main>\n"
        f'<footer class="soft"><p>The data behind this page is in {data}, SHA-256 <code>{digest}</code>.'
        "</p></footer></body></html>\n"
    )


def section(name: str, heading: str, body: str) -> str:
    """A part of a page, with its heading, which links can name."""
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(heading)}</h2>{body}</section>'
