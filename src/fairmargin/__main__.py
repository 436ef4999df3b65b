from fairmargin.cli.app import app

app()
