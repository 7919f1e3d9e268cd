"""How a page looks: two themes, one column, tables that scroll inside their own box."""

STYLESHEET = """
:root {
  color-scheme: light dark;
  --paper: #fdfdfc; --panel: #f3f3f0; --ink: #1a1a2a; --soft: #555563; --faint: #dcdce1; --line: #c2c2ca;
  --blue: #0072b2; --orange: #c04f00; --green: #00815e; --warn: #fff1d6; --edge: #d98e00;
  --shade: rgb(26 26 42 / .4);
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16171c; --panel: #202229; --ink: #ececf1; --soft: #a9abb8; --faint: #34373f; --line: #4a4d59;
    --blue: #56b4e9; --orange: #ff9e57; --green: #3fd0a4; --warn: #43351a; --edge: #e0a030;
    --shade: rgb(236 236 241 / .45);
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
}
main, header, footer { max-width: 58rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
header p { margin: 0 0 .2rem; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -.01em; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 3rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p, li, dd { overflow-wrap: anywhere; }
p { margin: .6rem 0; max-width: 46rem; }
a { color: var(--blue); text-underline-offset: .15em; }
.soft, figcaption, .note { color: var(--soft); font-size: .9rem; line-height: 1.5; }
ul.soft { padding-left: 1.2rem; max-width: 46rem; }
.lead { font-size: 1.2rem; line-height: 1.5; margin: 0 0 1.2rem; }
.warning, .failed {
  background: var(--warn); border-left: .3rem solid var(--edge); padding: .6rem 1rem; margin: 0 0 1.2rem;
}
.warning p { margin: .2rem 0; }
.warning p::before { content: "Warning: "; font-weight: 600; }
.box { overflow-x: auto; max-width: 100%; margin: .8rem 0; }
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
.box:focus-visible, a:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
table {
  border-collapse: collapse; font-size: .88rem; line-height: 1.45; min-width: 100%; font-variant-numeric:
  tabular-nums;
}
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { padding: .4rem .6rem; border-bottom: 1px solid var(--faint); text-align: left; vertical-align: top; }
th:first-child { padding-left: 0; }
td:last-child, thead th:last-child { padding-right: 0; }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; font-weight: 600; }
tbody th { font-weight: 500; }
.number { text-align: right; white-space: nowrap; }
small { display: block; color: var(--soft); font-size: .86em; }
.scores { font-size: 1rem; }
.scores tbody th { white-space: nowrap; }
.scores td:nth-child(2) { width: 34%; vertical-align: middle; }
.track {
  display: flex; height: 1.1rem; min-width: 5rem; background: var(--faint); border-radius: .15rem; overflow:
  hidden;
}
.sure { background: var(--blue); }
.open { background: repeating-linear-gradient(45deg, var(--blue) 0 2px, transparent 2px 6px); }
.counts tbody tr:last-child > * { border-top: 2px solid var(--line); font-weight: 600; }
.facts {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 0 2.5rem;
  margin: 1.6rem 0 1rem;
}
.facts div {
  display: grid; grid-template-columns: 7rem 1fr; padding: .45rem 0; border-bottom: 1px solid var(--faint);
  font-size: .92rem; line-height: 1.45;
}
.facts dt { color: var(--soft); }
.facts dd { margin: 0; }
nav { background: var(--panel); border-radius: .5rem; padding: .8rem 1rem; margin: 1.6rem 0; font-size: .92rem; }
nav ul { margin: 0; padding: 0; list-style: none; columns: 19rem; }
.bar { display: inline-block; height: .7em; background: var(--blue); border: 1px solid var(--ink); }
.less { background: repeating-linear-gradient(45deg, var(--orange) 0 2px, transparent 2px 4px); }
figure { margin: 1rem 0; }
figure svg { display: block; width: 100%; height: auto; }
.narrow { display: none; }
@media (max-width: 40rem) {
  .wide { display: none; } .narrow { display: block; }
  main, header, footer { padding-left: 1rem; padding-right: 1rem; }
  header { padding-top: 1.5rem; }
  h1 { font-size: 1.5rem; }
  .lead { font-size: 1.08rem; }
  .scores td:nth-child(2), .scores th:nth-child(2) { display: none; }
  .scores { font-size: .92rem; }
  .scores .number { white-space: normal; }
  .facts div { grid-template-columns: 1fr; }
  td:not(.number) { min-width: 7.5rem; }
}
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { font-family: inherit; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr)); gap: 1.2rem; }
.grid figure { margin: 0; }
.cards {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(9.2rem, 1fr)); gap: .8rem; padding: 0;
  list-style: none;
}
@media (min-width: 50rem) { .cards { grid-template-columns: repeat(4, 1fr); } }
.cards li { background: var(--panel); border-radius: .5rem; padding: .7rem; font-size: .84rem; line-height: 1.45; }
.cards .trio { display: flex; gap: .25rem; margin-bottom: .4rem; }
.cards img { flex: 1 1 0; min-width: 0; image-rendering: pixelated; border: 1px solid var(--line); }
code, pre { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { font-size: .86em; overflow-wrap: anywhere; }
pre { --cover: var(--panel); border-radius: .5rem; padding: .7rem .9rem; overflow-x: auto; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
footer { padding-bottom: 3rem; margin-top: 2.5rem; }
@media print { .box { overflow: visible; background: none; } nav { display: none; } }
@media print { h2 { break-after: avoid; } figure, .cards li, .facts div { break-inside: avoid; } }
"""
