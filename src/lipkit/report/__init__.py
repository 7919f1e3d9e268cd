"""Figures and pages made from results; nothing here computes a bound."""

from lipkit.report.html.page import render_page as render_page
from lipkit.report.html.page import write_report as write_report
from lipkit.report.results.gather import gather_contents as gather_contents
