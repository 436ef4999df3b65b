from fairmargin.cli import app

app()
