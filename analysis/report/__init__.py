"""The report: figures, contents, footnotes, and the page that holds them."""
