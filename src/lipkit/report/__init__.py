"""Figures and pages made from results; nothing here computes a bound."""

from lipkit.report.dynamics_figures import draw_batch_sizes as draw_batch_sizes
from lipkit.report.dynamics_figures import draw_landscape as draw_landscape
from lipkit.report.dynamics_figures import draw_phases as draw_phases
from lipkit.report.html.page import render_page as render_page
from lipkit.report.html.page import write_report as write_report
from lipkit.report.results.gather import gather_contents as gather_contents
