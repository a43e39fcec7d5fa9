"""Scripts and styles that draw figures on a page, which the report holds.

A page has a place for each figure, `<div class="plot" id="NAME">`, and its specification as data,
`<script type="application/json" data-plot="NAME">`, which no content security policy has to allow. Vega's
interpreter evaluates the expressions, so a policy needs no `unsafe-eval`, either; nothing is loaded.
"""

from __future__ import annotations

import functools
import json
import sys

from analysis.report.figure import VEGA_LITE
from analysis.report.style import DARK_INK, LIGHT_INK, theme

FONT = "system-ui, sans-serif"

STYLE = """\
.plot svg, .plot canvas { display: block; }
#vg-tooltip-element {
  visibility: hidden; position: fixed; z-index: 9; max-width: 24rem; padding: .4rem .6rem;
  border: 1px solid var(--line); border-radius: .3rem; background: var(--card); color: var(--ink);
  pointer-events: none; font: .8rem/1.4 system-ui, sans-serif; white-space: pre-line; overflow-wrap: anywhere;
}
#vg-tooltip-element.visible { visibility: visible; }
"""
"""Style of the figures and of what a pointer shows; the page defines the colours --line, --card and --ink."""

_DRAW = """
(() => {
  const themes = %s;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const shown = new Map();
  async function draw(source) {
    const spec = JSON.parse(source.textContent);
    const place = document.getElementById(source.dataset.plot);
    const theme = dark.matches ? "dark" : "light";
    const columns = Math.max(1, Math.floor(place.clientWidth / spec.usermeta.entry));
    const style = `${theme} ${columns}`;
    if (shown.get(place)?.style === style) return;  // Vega itself follows the width
    shown.get(place)?.view?.finalize();
    const figure = {style};
    shown.set(place, figure);
    const config = {...themes[theme], legend: {...themes[theme].legend, columns}};
    figure.view = await vegaEmbed(place, spec, {
      ast: true, actions: false, defaultStyle: false, tooltip: {disableDefaultStyle: true},
      renderer: spec.usermeta.renderer, config,
    });
    for (const part of place.children) part.setAttribute("aria-hidden", "true");  // the place has a text
  }
  function all() {  // a live page may have put others in their place
    for (const [place, figure] of shown) {
      if (!place.isConnected) { figure.view?.finalize(); shown.delete(place); }
    }
    document.querySelectorAll("script[data-plot]").forEach(draw);
  }
  dark.addEventListener("change", all);
  addEventListener("resize", all);
  all();
})();
"""


@functools.cache
def vega_bundle() -> str:
    """Return the JavaScript of Vega, Vega-Lite and Vega-Embed, minified: one script that asks for no other.

    It defines `vegaEmbed`. Making it takes a second; later calls in a process do not.
    """
    import vl_convert

    bundle = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE))
    return f"(() => {{{bundle}\n}})();"  # its own names stay its own


def draw_script() -> str:
    """Return the JavaScript that draws every figure of a page, in the reader's scheme of colours."""
    themes = {"light": theme(LIGHT_INK, FONT), "dark": theme(DARK_INK, FONT)}
    return _DRAW % json.dumps(themes, separators=(",", ":"))


if __name__ == "__main__":  # for whoever serves the script, and would not keep V8's 100 MB in its process
    sys.stdout.write(f"{vega_bundle()}\n{draw_script()}")
