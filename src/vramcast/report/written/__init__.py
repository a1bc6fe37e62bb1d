"""`--report`: an answer as one file to keep, send or print, as a page (HTML) or for a repository (Markdown).

One intermediate noun, `parts.Report`, is made of an answer once; a format is one function from it to text.

    question and answer -> answers | plans | diagnoses | recordings -> Report -> html | markdown
"""

from vramcast.report.written.made import FORMATS, check_report, report_of

__all__ = ["FORMATS", "check_report", "report_of"]
