"""How a page looks: two themes, one column, tables that scroll inside their own box."""

STYLESHEET = """
:root {
  color-scheme: light dark;
  --paper: #fdfdfc; --panel: #f3f3f1; --ink: #1a1a2a; --soft: #555563; --faint: #d4d4da; --line: #c2c2ca;
  --blue: #0072b2; --orange: #c04f00; --green: #00815e; --warn: #fff1d6;
  --shade: rgb(26 26 42 / .4);
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16171c; --panel: #202229; --ink: #ececf1; --soft: #a9abb8; --faint: #3a3d47; --line: #4a4d59;
    --blue: #56b4e9; --orange: #ff9e57; --green: #3fd0a4; --warn: #43351a;
    --shade: rgb(236 236 241 / .45);
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
}
main, header, footer { max-width: 54rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 2.2rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .5rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p, li { overflow-wrap: anywhere; }
p { margin: .5rem 0; }
.soft, figcaption, .note { color: var(--soft); font-size: .9rem; }
.headline { font-size: 1.15rem; line-height: 1.6; }
.headline strong { white-space: nowrap; }
.figures { display: flex; flex-wrap: wrap; gap: .7rem; margin: 1.1rem 0; }
.figures li { flex: 1 1 9rem; background: var(--panel); border-radius: .5rem; padding: .7rem .9rem; }
.figures b { display: block; font-size: 1.5rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.figures span { color: var(--soft); font-size: .85rem; }
.failed { background: var(--warn); border-radius: .5rem; padding: .6rem .9rem; }
.box { overflow-x: auto; max-width: 100%; margin: .7rem 0; }
/* Shade at an edge that more lies beyond: covers of the paper's colour scroll along, and hide it where all is shown. */
.box, pre {
  background:
    linear-gradient(to right, var(--cover) 1rem, transparent) left / 2rem 100% no-repeat local,
    linear-gradient(to left, var(--cover) 1rem, transparent) right / 2rem 100% no-repeat local,
    linear-gradient(to right, var(--shade), transparent) left / .9rem 100% no-repeat scroll,
    linear-gradient(to left, var(--shade), transparent) right / .9rem 100% no-repeat scroll,
    var(--cover);
  --cover: var(--paper);
}
.box:focus-visible { outline: 2px solid var(--blue); }
table { border-collapse: collapse; font-size: .88rem; min-width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--faint); text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid var(--line); white-space: nowrap; }
tbody th { font-weight: 500; }
td:not(.number) { min-width: 6.5rem; }
.number { text-align: right; white-space: nowrap; }
.bar { display: inline-block; height: .7em; background: var(--blue); border: 1px solid var(--ink); }
.less { background: repeating-linear-gradient(45deg, var(--orange) 0 2px, transparent 2px 4px); }
figure { margin: 1rem 0; }
figure svg { display: block; width: 100%; max-width: 38rem; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { font-family: inherit; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .9rem; }
.grid figure { margin: 0; }
.grid svg { max-width: 20rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.2rem, 1fr)); gap: .8rem; }
@media (min-width: 50rem) { .cards { grid-template-columns: repeat(4, 1fr); } }
.cards, .figures { padding: 0; list-style: none; }
.cards li { background: var(--panel); border-radius: .5rem; padding: .6rem; font-size: .82rem; line-height: 1.4; }
.cards .trio { display: flex; gap: .25rem; margin-bottom: .4rem; }
.cards img { flex: 1 1 0; min-width: 0; image-rendering: pixelated; border: 1px solid var(--line); }
code, pre { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { font-size: .88em; }
td code { overflow-wrap: anywhere; }
pre { --cover: var(--panel); border-radius: .5rem; padding: .7rem .9rem; overflow-x: auto; }
footer { padding-bottom: 3rem; }
@media print { .box { overflow: visible; background: none; } }
@media print { h2 { break-after: avoid; } figure, .cards li { break-inside: avoid; } }
"""
